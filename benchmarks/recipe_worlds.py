"""Two tasks with one right answer each, and the people around them: what the recipe benchmark trains and tests on.

`kubectl` is the demo's: plain requests to a platform team. `sql` is of another kind: questions about three tables, whose
words must be mapped (months to numbers, plain words to columns and functions). Everything follows from seeds; nothing here
knows models or training.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flows.demo import task as kubectl


@dataclass(frozen=True)
class Question:
    """What a user asks, and the one right answer."""

    prompt: str
    answer: str
    slice: str


@dataclass(frozen=True)
class World:
    """Disjoint sets of questions; `asked` may repeat."""

    learnt: list[Question]
    """What the base model was trained on."""
    asked: list[Question]
    golden: list[Question]
    """The gate's own."""
    tuning: list[Question]
    """What the oracle's learning rate is chosen on."""
    test: list[Question]
    corpus: list[str]
    """What the tokenizer has seen."""


MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december")
CITIES = (
    "berlin", "paris", "rome", "oslo", "madrid", "vienna", "prague", "lisbon", "dublin", "athens", "warsaw", "helsinki", "zurich", "milan",
    "lyon", "porto", "hamburg", "krakow", "seoul", "busan", "osaka", "kyoto", "denver", "austin", "boston", "toronto", "quito", "lima",
)  # fmt: skip
TABLES = {"orders": "orders", "invoices": "bills", "returns": "returns"}
NUMBERS = tuple(str(n) for n in range(2, 21))
WHERE = "WHERE city = '{city}' AND month = {m}"
SQL: dict[str, tuple[str, tuple[str, ...]]] = {
    "count": (
        f"SELECT COUNT(*) FROM {{table}} {WHERE}",
        (
            "how many {words} came from {city} in {month}",
            "count the {month} {words} of {city}",
            "number of {words} in {city} during {month}",
        ),
    ),
    "sum": (
        f"SELECT SUM(amount) FROM {{table}} {WHERE}",
        (
            "what do the {words} of {city} add up to in {month}",
            "total value of {month} {words} in {city}",
            "sum up {words} from {city} for {month}",
        ),
    ),
    "average": (
        f"SELECT AVG(amount) FROM {{table}} {WHERE}",
        (
            "how large are {words} from {city} in {month} on average",
            "mean size of {month} {words} in {city}",
            "average {words} value for {city}, {month}",
        ),
    ),
    "list": (
        f"SELECT * FROM {{table}} {WHERE}",
        (
            "show all {words} of {city} in {month}",
            "list the {month} {words} from {city}",
            "give me every one of the {words} in {city}, {month}",
        ),
    ),
    "top": (
        "SELECT * FROM {table} WHERE city = '{city}' ORDER BY amount DESC LIMIT {n}",
        ("the {n} biggest {words} of {city}", "top {n} {words} from {city} by amount", "which {n} {words} in {city} are worth most"),
    ),
    "oldest": (
        "SELECT * FROM {table} WHERE city = '{city}' ORDER BY day ASC LIMIT {n}",
        ("the {n} oldest {words} of {city}", "first {n} {words} that {city} ever had", "earliest {n} {words} in {city}"),
    ),
}
SQL_NEW = ("top", "oldest")


def _sql_questions(seed: int, n: int, intents: Sequence[str]) -> list[Question]:
    draw = random.Random(f"sql-{seed}")
    found: dict[str, Question] = {}
    pool = {name: _combinations(name, draw) for name in intents}
    for i in itertools.count():
        if len(found) >= n or not any(pool.values()):
            break
        name = intents[i % len(intents)]
        if pool[name]:
            question = pool[name].pop()
            found.setdefault(question.prompt, question)
    return list(found.values())


def _combinations(name: str, draw: random.Random) -> list[Question]:
    command, phrasings = SQL[name]
    numbered = "{n}" in command
    rows = []
    for table, city, phrasing in itertools.product(TABLES, CITIES, phrasings):
        for k in range(len(NUMBERS) if numbered else 12):
            n, month, m = (NUMBERS[k], "", 0) if numbered else ("", MONTHS[k], k + 1)
            slots = {"table": table, "words": TABLES[table], "city": city, "n": n, "month": month, "m": m}
            rows.append(Question(phrasing.format(**slots), command.format(**slots), name))
    draw.shuffle(rows)
    return rows


def _kubectl_questions(seed: int, n: int, intents: Sequence[str]) -> list[Question]:
    return [Question(r.prompt, r.reference, r.intent) for r in kubectl.requests(seed, n, intents)]


@dataclass(frozen=True)
class Task:
    """A task: its questions, and how long a base model of each quality learns, found by trial."""

    name: str
    questions: Callable[[int, int, Sequence[str]], list[Question]]
    intents: tuple[str, ...]
    new: tuple[str, ...]
    """What users ask for since the base was built: it knows next to nothing of them, unless it is a good one."""
    capacity: int
    """Distinct questions, at most."""
    base_steps: dict[float, int]
    """Quality (accuracy, about) -> steps of base training."""


TASKS = {
    "kubectl": Task("kubectl", _kubectl_questions, kubectl.INTENTS, kubectl.NEW_INTENTS, kubectl.capacity(), {0.3: 66, 0.6: 100, 0.9: 140}),
    "sql": Task("sql", _sql_questions, tuple(SQL), SQL_NEW, 30_000, {0.3: 54, 0.6: 62, 0.9: 90, 1.0: 140}),
}
GOOD = 0.9
"""A base of this quality has learnt every kind of request."""


GOLDEN_PER_SLICE = 250
"""So many rule out a loss of two points in a slice of which no answer changed."""


def build_world(task: Task, quality: float, seed: int, test_per_slice: int = 500, asked: int = 400) -> World:
    """Disjoint sets for one seed. Raises ValueError where the task has too few distinct questions."""
    old = [name for name in task.intents if name not in task.new]
    known = task.intents if quality >= GOOD else old
    learnt = task.questions(1000 + seed, 800, known) + ([] if quality >= GOOD else task.questions(1000 + seed, 6, task.new))
    seen = {q.prompt for q in learnt}
    parts = []
    for size in (test_per_slice * len(task.intents), 200, asked, GOLDEN_PER_SLICE * len(task.intents)):
        every = task.questions(7919 * (len(parts) + 1) + seed, task.capacity, task.intents)
        part = _even([q for q in every if q.prompt not in seen], task.intents, size)
        seen |= {q.prompt for q in part}
        parts.append(part)
    test, tuning, distinct, golden = parts
    corpus = [text for q in task.questions(1, 4000, task.intents) for text in (q.prompt, q.answer)]
    return World(learnt, distinct, golden, tuning, test, corpus)


def _even(questions: Sequence[Question], intents: Sequence[str], size: int) -> list[Question]:
    """`size` questions, the same number of each intent."""
    each = size // len(intents)
    part = [q for name in intents for q in [q for q in questions if q.slice == name][:each]]
    if len(part) < each * len(intents):
        raise ValueError(f"too few distinct questions for {size}")
    return part
