"""The tasks of the recipe benchmark. Each question has exactly one right answer.

`kubectl` is the demo's task: plain-language requests to a platform team. `sql` asks questions about three tables; the model must map words
to SQL, for example months to numbers and plain words to columns and functions. No constant was tuned on the other tasks
(benchmarks/recipe_untuned.py). All questions are determined by seeds. This module does
not depend on models or training.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.recipe_untuned import KINDS
from ratchet.flows.demo import task as kubectl


@dataclass(frozen=True)
class Question:
    """A user's question, its only right answer, and its slice."""

    prompt: str
    answer: str
    slice: str


@dataclass(frozen=True)
class World:
    """Disjoint sets of questions, and the texts for the tokenizer."""

    learnt: list[Question]
    """The training data of the base model."""
    asked: list[Question]
    """The distinct questions of the users; the traffic repeats them."""
    golden: list[Question]
    """The golden set of the gate."""
    tuning: list[Question]
    """The questions on which the oracle's learning rate is chosen."""
    test: list[Question]
    """The questions that measure the true accuracy; nothing else uses them."""
    corpus: list[str]
    """The texts on which the tokenizer is trained."""


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
    """A task: its questions, and the training steps of its base models, which were found by trial."""

    name: str
    questions: Callable[[int, int, Sequence[str]], list[Question]]
    """Generate up to n distinct questions of the given intents: (seed, n, intents) -> questions."""
    intents: tuple[str, ...]
    """The kinds of request; each is a slice."""
    new: tuple[str, ...]
    """New intents, which users request only after the base was trained. A base with a quality below GOOD has seen six examples of them."""
    capacity: int
    """The upper bound on the number of distinct questions."""
    base_steps: dict[float, int]
    """The number of base training steps for each base quality (approximate accuracy)."""


TASKS = {
    "kubectl": Task("kubectl", _kubectl_questions, kubectl.INTENTS, kubectl.NEW_INTENTS, kubectl.capacity(), {0.3: 66, 0.6: 100, 0.9: 140}),
    "sql": Task("sql", _sql_questions, tuple(SQL), SQL_NEW, 30_000, {0.3: 54, 0.6: 62, 0.9: 90, 1.0: 140}),
}


def _untuned(name: str) -> Task:
    generate, intents, new, steps = KINDS[name]

    def questions(seed: int, n: int, wanted: Sequence[str]) -> list[Question]:
        pools = {kind: generate(kind) for kind in wanted}
        for kind, pool in pools.items():
            random.Random(f"{name}-{kind}-{seed}").shuffle(pool)
        rows = [Question(prompt, answer, kind) for kind, pool in pools.items() for prompt, answer in pool[: -(-n // len(wanted))]]
        random.Random(seed).shuffle(rows)
        return rows[:n]

    return Task(name, questions, intents, new, 100_000, steps)


TASKS |= {name: _untuned(name) for name in KINDS}
GOOD = 0.9
"""A base model of at least this quality is trained on every intent."""


GOLDEN_PER_SLICE = 250
"""Questions per slice in the golden set. This many exclude a loss of two points in a slice where no answer changed."""


def build_world(task: Task, quality: float, seed: int, test_per_slice: int = 500, asked: int = 400) -> World:
    """Return the sets of questions for one seed. Raises ValueError if the task has too few distinct questions."""
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
    """Return about `size` questions, the same number of each intent. Raises ValueError if there are too few."""
    each = size // len(intents)
    part = [q for name in intents for q in [q for q in questions if q.slice == name][:each]]
    if len(part) < each * len(intents):
        raise ValueError(f"too few distinct questions for a set of {size}")
    return part
