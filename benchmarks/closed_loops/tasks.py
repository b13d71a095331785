"""Three tasks on which nothing was ever tuned: dates, log lines, and English plurals. They were written after all rules of the product.

Each generator returns distinct (prompt, answer) pairs of one kind of request, which is a slice.
"""

from __future__ import annotations

import itertools
import random

from benchmarks.recipe_untuned import Pairs
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


FRESH = {
    "dates": (dates, tuple(DATES), ("quarter", "next"), 220),
    "logs": (logs, tuple(LOGS), ("start", "full"), 150),
    "plural": (plural, tuple(NOUNS), ("ies", "ves"), 120),
}
"""Name -> generator, kinds of request, those that users request since the base was built, and the training steps of the base."""


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
