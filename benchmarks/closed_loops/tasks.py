"""Five tasks on which nothing was ever tuned: dates, log lines, English plurals, units, and replies to requests.

`dates`, `logs` and `plural` were written after the rules of training, gate and rollout, `units` and `replies` after those of the search.

Each generator returns distinct (prompt, answer) pairs of one kind of request, which is a slice.
"""

from __future__ import annotations

import itertools
import random

from benchmarks.recipe_untuned import NAMES, Pairs
from benchmarks.recipe_worlds import MONTHS, TASKS, Question, Task

DATES = {
    "written": ("{day} {month} {year}", "the {day}. of {month}, {year}", "{month} {day}, {year}"),
    "numbers": ("{day}/{m}/{year}", "{day}.{m}.{year}", "day {day} month {m} year {year}"),
    "quarter": ("which quarter is {month} {year}", "quarter of {day} {month} {year}", "{month} {year} belongs to quarter"),
    "next": ("month after {month} {year}", "{month} {year} plus one month", "what follows {month} {year}"),
}
COMPONENTS = {"db": "storage", "cache": "storage", "api": "edge", "proxy": "edge", "queue": "jobs", "worker": "jobs", "login": "access"}
LOGS: dict[str, tuple[str, ...]] = {
    "error": ("{c}-{n} failed after {k} tries", "{c}-{n}: fatal in call {k}", "lost {c}-{n} at line {k}"),
    "slow": ("{c}-{n} took {k}00 ms", "{c}-{n} is slow: {k} s", "timeout of {k} s on {c}-{n}"),
    "start": ("{c}-{n} is up with {k} threads", "started {c}-{n} pid {k}", "boot of {c}-{n} done in {k} s"),
    "full": ("{c}-{n} disk at {k} percent", "no space for {c}-{n}, {k} files", "{c}-{n} reached its quota of {k}"),
}
LEVELS = {"error": "ERROR", "slow": "WARN", "start": "INFO", "full": "ALERT"}
NOUNS = {
    "regular": ("lamp", "desk", "river", "garden", "window", "table", "cloud", "road", "tree", "song", "boat", "hill"),
    "es": ("box", "dish", "glass", "match", "bus", "brush", "fox", "lunch", "class", "tax", "wish", "bench"),
    "ies": ("city", "story", "baby", "lady", "party", "berry", "body", "copy", "army", "duty", "fairy", "pony"),
    "ves": ("leaf", "wolf", "knife", "shelf", "life", "half", "loaf", "thief", "wife", "calf", "elf", "scarf"),
}
VERBS = {"falls": "fall", "stands": "stand", "waits": "wait", "moves": "move", "appears": "appear", "shines": "shine", "turns": "turn"}
ADJECTIVES = ("old", "small", "green", "quiet", "heavy", "bright", "long", "new", "dark", "round")
PLACES = ("near the sea", "in the north", "by the door", "every day", "at night", "on the left", "after noon", "for long")
UNITS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "metres": (1000, "m", ("{n} km in m", "how many m are {n} km", "{n} kilometres to metres")),
    "grams": (1000, "g", ("{n} kg in g", "how many g are {n} kg", "{n} kilograms to grams")),
    "cents": (100, "ct", ("{n} euros in cents", "how many ct are {n} eur", "{n} eur as cents")),
    "millis": (1000, "ms", ("{n} s in ms", "how many ms are {n} s", "{n} seconds to milliseconds")),
}
"""Kind -> factor, unit, phrases."""
DOING = {"send": "sending", "bring": "bringing", "show": "showing", "write": "writing", "read": "reading", "sell": "selling"}
THINGS = ("report", "letter", "list", "plan", "photo", "menu", "ticket", "offer")
REPLIES = {
    "ask": (("request {do} {it}", "ask for this: {do} {it}", "question for {do} {it}"), "could you please {do} {it}?"),
    "refuse": (("refuse to {do} {it}", "say no: {do} {it}", "decline: {do} {it}"), "sorry, i cannot {do} {it}"),
    "thank": (("thanks for {do} {it}", "say thank you: {do} {it}", "be grateful: {do} {it}"), "thank you for {doing} {it}"),
    "promise": (("promise to {do} {it}", "say that you will {do} {it}", "agree: {do} {it}"), "i will {do} {it} soon"),
}
"""Kind -> phrases and reply."""


def dates(kind: str) -> Pairs:
    """Dates in words and numbers, to be written as ISO dates, as quarters, or one month later."""
    found = {}
    for phrase, (m, month), year, day in itertools.product(DATES[kind], enumerate(MONTHS, 1), range(1990, 2030), range(1, 29)):
        prompt = phrase.format(day=day, month=month, m=m, year=year)
        after = f"{year + m // 12}-{m % 12 + 1:02d}"
        answer = {"quarter": f"{year}-Q{(m + 2) // 3}", "next": after}.get(kind, f"{year}-{m:02d}-{day:02d}")
        found[prompt] = answer
    return list(found.items())


def logs(kind: str) -> Pairs:
    """Log lines, and their level, team and unit."""
    rows = itertools.product(LOGS[kind], COMPONENTS.items(), range(10, 60), range(2, 42))
    return [(phrase.format(c=c, n=n, k=k), f"{LEVELS[kind]} {team} {c}-{n} {k}") for phrase, (c, team), n, k in rows]


def plural(kind: str) -> Pairs:
    """Sentences in the singular, and the same in the plural."""
    endings = {"regular": lambda w: w + "s", "es": lambda w: w + "es", "ies": lambda w: w[:-1] + "ies", "ves": _ves}
    rows = itertools.product(NOUNS[kind], ADJECTIVES, VERBS.items(), PLACES)
    return [(f"the {a} {noun} {one} {place}", f"the {a} {endings[kind](noun)} {many} {place}") for noun, a, (one, many), place in rows]


def _ves(word: str) -> str:
    return word.removesuffix("e").removesuffix("f") + "ves"


def units(kind: str) -> Pairs:
    """Quantities, and the same in a smaller unit."""
    factor, unit, phrases = UNITS[kind]
    return [(phrase.format(n=n), f"{n * factor} {unit}") for phrase, n in itertools.product(phrases, range(2, 900))]


def replies(kind: str) -> Pairs:
    """Orders to reply to a request, and the reply as a sentence."""
    phrases, reply = REPLIES[kind]
    rows = itertools.product(phrases, DOING.items(), THINGS, NAMES)
    found = []
    for phrase, (do, doing), thing, name in rows:
        it = f"the {thing} to {name}"
        found.append((phrase.format(do=do, it=it), reply.format(do=do, doing=doing, it=it)))
    return found


FRESH = {
    "dates": (dates, tuple(DATES), ("quarter", "next"), 220),
    "logs": (logs, tuple(LOGS), ("start", "full"), 150),
    "plural": (plural, tuple(NOUNS), ("ies", "ves"), 120),
    "units": (units, tuple(UNITS), ("cents", "millis"), 200),
    "replies": (replies, tuple(REPLIES), ("thank", "promise"), 100),
}
"""Name -> generator, kinds of request, those that users began to request after the base was built, and the training
steps of the base."""


def _task(name: str) -> Task:
    generate, kinds, new, steps = FRESH[name]

    def questions(seed: int, n: int, wanted: tuple[str, ...] | list[str]) -> list[Question]:
        rows = []
        for kind in wanted:
            pool = generate(kind)
            random.Random(f"{name}-{kind}-{seed}").shuffle(pool)
            rows += [Question(prompt, answer, kind) for prompt, answer in pool[: -(-n // len(wanted))]]
        random.Random(seed).shuffle(rows)
        return rows[:n]

    return Task(name, questions, kinds, new, 100_000, {0.6: steps})  # type: ignore[arg-type]


EVERY: dict[str, Task] = {**TASKS, **{name: _task(name) for name in FRESH}}
"""All tasks by name: those of the recipe benchmark, and the fresh ones."""
