"""Nine tasks on which nothing was ever tuned.

`dates`, `logs` and `plural` were written after the rules of training, gate and rollout, `units` and `replies` after those of the search,
and `times`, `mails`, `paths` and `days` after those of asking reviewers and teachers.

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

CLOCK = {"five": 5, "ten": 10, "quarter": 15, "twenty": 20, "half": 30}
PARTS = {"morning": 0, "evening": 12}
TIMES = {
    "past": ("{name} {word} past {hour} in the {part}", "{word} past {hour} in the {part}: {name}"),
    "to": ("{name} {word} to {hour} in the {part}", "{word} to {hour} in the {part}: {name}"),
    "later": ("{name} {word} after {hour} {part}, an hour later", "an hour after {word} past {hour} {part}: {name}"),
    "end": ("{name} from {hour} {part} for {word} minutes", "{word} minutes from {hour} {part}: {name}"),
}
SURNAMES = ("berg", "silva", "moreau", "novak", "rossi", "haas", "lund", "kaya", "costa", "wolf", "jansen", "popov")
FIRMS = ("northwind", "acme", "globex", "initech", "umbra", "hooli", "stark", "wayne", "vandelay", "cyber", "tyrell", "oscorp")
MAILS = {
    "long": (("mail of {first} {last}, {firm}", "write to {first} {last} at {firm}"), "{first}.{last}@{firm}.com"),
    "short": (("short mail of {first} {last}, {firm}", "short address: {first} {last} at {firm}"), "{f}{last}@{firm}.com"),
    "list": (("list entry for {first} {last} of {firm}", "sort in {first} {last}, {firm}"), "{last}, {first} ({firm})"),
    "login": (("login of {first} {last} at {firm}", "user name for {first} {last}, {firm}"), "{firm}/{last}_{f}"),
}
"""Kind -> phrases and answer."""
ROOTS, INNER = ("srv", "home", "data", "opt"), ("logs", "docs", "img", "keys", "mail")
STEMS, ENDINGS = ("plan", "notes", "list", "draft", "users", "rates"), ("txt", "csv", "pdf", "log")
PATHS = {
    "parent": (("folder of {path}", "where is {path}", "parent of {path}"), "{folder}"),
    "name": (("file name of {path}", "last part of {path}", "name in {path}"), "{stem}.{ending}"),
    "markdown": (("{path} as markdown", "markdown copy of {path}", "convert {path} to md"), "{folder}/{stem}.md"),
    "backup": (("backup of {path}", "save {path} twice", "keep a copy of {path}"), "/backup{folder}/{stem}.{ending}.bak"),
}
"""Kind -> phrases and answer."""
WEEK = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
STEPS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
DAYS = {
    "after": ("{name} {n} days after {day}", "{n} days after {day}: {name}", "move {name} from {day} by {n} days"),
    "before": ("{name} {n} days before {day}", "{n} days before {day}: {name}", "pull {name} from {day} by {n} days"),
    "until": ("{name} from {day} for {n} days", "{n} days from {day}: {name}", "book {name} on {day} for {n} days"),
    "every": ("{name} every {n} days from {day}", "every {n} days from {day}: {name}", "repeat {name} on {day} and {n} days later"),
}


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


def times(kind: str) -> Pairs:
    """Names with a time in words, to be written with 24 hours, one hour later, or as a span."""
    found = []
    for phrase, name, (word, minutes), hour, (part, noon) in itertools.product(
        TIMES[kind], NAMES, CLOCK.items(), range(1, 12), PARTS.items()
    ):
        at = hour + noon
        answer = {"past": f"{at:02d}:{minutes:02d}", "to": f"{at - 1:02d}:{60 - minutes:02d}", "later": f"{at + 1:02d}:{minutes:02d}"}
        end = f"{at:02d}:00-{at:02d}:{minutes:02d}"
        found.append((phrase.format(name=name, word=word, hour=hour, part=part), f"{name} {answer.get(kind, end)}"))
    return found


def mails(kind: str) -> Pairs:
    """People of a firm, and their address, entry in a list, or login."""
    phrases, answer = MAILS[kind]
    rows = itertools.product(phrases, NAMES, SURNAMES, FIRMS)
    told = ((phrase, {"first": first, "f": first[0], "last": last, "firm": firm}) for phrase, first, last, firm in rows)
    return [(phrase.format(**parts), answer.format(**parts)) for phrase, parts in told]


def paths(kind: str) -> Pairs:
    """Paths of files, and their folder, their name, or the path of a copy."""
    phrases, answer = PATHS[kind]
    found = []
    for phrase, root, inner, n, stem, ending in itertools.product(phrases, ROOTS, INNER, range(2, 9), STEMS, ENDINGS):
        folder = f"/{root}/{inner}/{n}"
        told = {"path": f"{folder}/{stem}.{ending}", "folder": folder, "stem": stem, "ending": ending}
        found.append((phrase.format(**told), answer.format(**told)))
    return found


def days(kind: str) -> Pairs:
    """Names with a weekday and a number of days, and the weekdays that this makes."""
    found = []
    for phrase, name, (word, n), day in itertools.product(DAYS[kind], NAMES, STEPS.items(), range(7)):
        after = WEEK[(day + (-n if kind == "before" else n)) % 7]
        answer = {"until": f"{WEEK[day]} to {after}", "every": f"{WEEK[day]} and {after}"}.get(kind, after)
        found.append((phrase.format(name=name, n=word, day=WEEK[day]), f"{name} {answer}"))
    return found


FRESH = {
    "dates": (dates, tuple(DATES), ("quarter", "next"), 220),
    "logs": (logs, tuple(LOGS), ("start", "full"), 150),
    "plural": (plural, tuple(NOUNS), ("ies", "ves"), 120),
    "units": (units, tuple(UNITS), ("cents", "millis"), 200),
    "replies": (replies, tuple(REPLIES), ("thank", "promise"), 100),
    "times": (times, tuple(TIMES), ("later", "end"), 150),
    "mails": (mails, tuple(MAILS), ("list", "login"), 150),
    "paths": (paths, tuple(PATHS), ("markdown", "backup"), 150),
    "days": (days, tuple(DAYS), ("until", "every"), 500),
}
"""Name -> generator, kinds of request, those that users began to request after the base was built, and the training
steps of the base."""

SECTIONS = {"mails": '\n[privacy]\nmask = ["phone", "card", "iban", "national_id", "secret", "ip"]\n'}
"""Task -> what an operator adds to the loop file. Right answers of `mails` are addresses, and nothing can be learnt from masked ones."""


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
