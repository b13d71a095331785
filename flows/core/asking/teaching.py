"""Which questions are sent to a teacher, what they may cost, and what the rows of a line's teacher say. Pure.

A question is sent once to each version of a teacher. Its row `sent` comes before the request and its row `got` after it, so a question
without `got` was interrupted: it may have been paid for, is not sent again, and counts with its highest cost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ratchet.contracts.cycle import Entry
from ratchet.contracts.data.beliefs import TeacherBelief
from ratchet.contracts.data.teaching import OPEN, Sendable, SendablePrompt, TeacherRound, highest_cost, teacher_version
from ratchet.contracts.ids import Digest, digest, hash_share
from ratchet.contracts.loop import TeacherSettings
from ratchet.contracts.rows import TeacherGot, TeacherSent, content_of
from ratchet.flows.core.asking.review import ReviewQuestion

INTERRUPTED = "interrupted"
"""Outcome of a question whose asking was interrupted, for example by a crash."""
ASKED = "this teacher was asked before"
LOW = "the teacher's agreement with people is too low on their slice"
UNPROVEN = "nothing could confirm an answer: no verifiable reward without a reference, and no measured question on their slice"
UNKNOWN = "they are no training prompts any more"


USED_EVIDENCE = (
    "demonstration and chosen side of a pair",
    "demonstration",
    "chosen side of a pair",
    "rejected side of a pair",
    "development prompt",
)
"""Destinations of evidence in `TrainingSet.evidence` that are used."""


@dataclass(frozen=True)
class Question:
    """A question that may be sent."""

    key: Digest
    prompt: SendablePrompt
    gain: float
    """Expected gain of a right answer; 0 for a question that measures the agreement."""
    measures: bool
    """Whether its right answer is known."""
    highest: float
    """Highest cost of one request."""


@dataclass(frozen=True)
class Charge:
    """What was spent at a time."""

    at: datetime
    requests: int
    cost: float


@dataclass
class TeacherView:
    """The folded rows of a line's teacher."""

    settled: set[Digest] = field(default_factory=set)
    """Keys of the questions that are not sent again."""
    charges: list[Charge] = field(default_factory=list)
    open: dict[Digest, tuple[TeacherSent, TeacherGot | None]] = field(default_factory=dict)
    """Key -> a question that was sent since the last round, and the row about its answer; None if it was interrupted."""
    rounds: list[tuple[datetime, str, TeacherRound]] = field(default_factory=list)
    """Time, key of the row and content of each asking that is complete."""

    def spent(self, since: datetime) -> tuple[int, float]:
        """Return the number of requests and the cost since a time. An interrupted question has its highest cost."""
        found = [one for one in self.charges if one.at > since]
        return sum(one.requests for one in found), sum(one.cost for one in found)

    def outcomes(self) -> dict[str, int]:
        """Return the outcomes of the questions since the last round: outcome -> number."""
        found = Counter(got.outcome.value if got is not None else INTERRUPTED for _, got in self.open.values())
        return dict(sorted(found.items()))

    def cost(self) -> float:
        """Return the cost of the questions since the last round."""
        return sum(sent.highest if got is None else got.cost for sent, got in self.open.values())

    def answers(self) -> list[Digest]:
        """Return the artifacts of the answers since the last round, in the order of the questions."""
        return [got.answer for _, got in self.open.values() if got is not None and got.answer is not None]


def fold_teacher(entries: Iterable[Entry]) -> TeacherView:
    """Return the view of the rows of a teacher's stream."""
    view = TeacherView()
    waiting: dict[Digest, int] = {}
    for row in entries:
        if row.kind == "sent":
            sent = content_of(TeacherSent, row)
            waiting[row.key] = len(view.charges)
            view.charges.append(Charge(row.at, 1, sent.highest))
            view.settled.add(row.key)
            view.open[row.key] = (sent, None)
        elif row.kind == "got":
            got = content_of(TeacherGot, row)
            view.charges[waiting.pop(row.key)] = Charge(row.at, got.requests, got.cost)
            view.open[row.key] = (view.open[row.key][0], got)
            if got.outcome in OPEN:
                view.settled.discard(row.key)
        elif row.kind == "round":
            view.rounds.append((row.at, row.key, content_of(TeacherRound, row)))
            view.open = {}
    return view


@dataclass(frozen=True)
class Left:
    """What is left of the budgets."""

    requests: int
    cost: float

    def permits(self, question: Question) -> str | None:
        """Return why a question must not be sent; None if it may be."""
        if self.requests < 1:
            return "the budget of requests is used up (teacher.max_requests)"
        if question.highest > self.cost:
            return "the budget of money does not suffice for the next question (teacher.max_cost)"
        return None


def left(settings: TeacherSettings, view: TeacherView, now: datetime) -> Left:
    """Return what is left of the budgets of the last `period_days`."""
    requests, cost = view.spent(now - timedelta(days=settings.period_days))
    return Left(max(0, settings.max_requests - requests), max(0.0, settings.max_cost - cost))


def key_of(salt: str, version: Digest, prompt_id: Digest) -> Digest:
    """Return the key of a question in the ledger. It is salted, so that nobody can find out there whether a text was asked."""
    return digest(["teacher", salt, version, prompt_id])


def choose_questions_to_send(
    questions: Sequence[ReviewQuestion],
    may_be_sent: Sendable,
    beliefs: Sequence[TeacherBelief],
    settings: TeacherSettings,
    salt: str,
    view: TeacherView,
) -> tuple[list[Question], dict[str, int]]:
    """Return the questions to send, those that measure the agreement first, and reason -> number of `questions` that are not sent.

    `questions` have no right answer yet, the highest expected gain first. `beliefs` are those of the newest snapshot.
    """
    version = teacher_version(settings)
    by_id = {one.prompt_id: one for one in may_be_sent.prompts}

    def made(prompt: SendablePrompt, gain: float, measures: bool) -> Question:
        key = key_of(salt, version, prompt.prompt_id)
        return Question(key, prompt, gain, measures, highest_cost(settings, prompt.messages))

    measuring = [made(one, 0.0, True) for one in _measuring(may_be_sent.prompts, settings.measure, salt, version)]
    provable, measurable = may_be_sent.provable, {one.prompt.slice for one in measuring}
    unfinished = {one.prompt.slice for one in measuring if one.key not in view.settled}
    own = [one for one in beliefs if one.version == version[:16]]
    low = {one.slice for one in own if one.refuted or not (provable or one.used or one.slice in unfinished)}
    reasons: Counter[str] = Counter()
    missing: list[Question] = []
    room = settings.questions - sum(not sent.measures for sent, _ in view.open.values())  # a repeat after a crash
    for question in questions:
        prompt = by_id.get(question.prompt_id)
        if prompt is None:
            reasons[may_be_sent.refused.get(question.prompt_id, UNKNOWN)] += 1
        elif prompt.slice in low:
            reasons[LOW] += 1
        elif not provable and prompt.slice not in measurable:
            reasons[UNPROVEN] += 1
        elif key_of(salt, version, prompt.prompt_id) in view.settled:
            reasons[ASKED] += 1
        elif len(missing) >= room:
            reasons[f"teacher.questions = {settings.questions} is reached"] += 1
        else:
            missing.append(made(prompt, question.expected_gain, False))
    return [one for one in [*measuring, *missing] if one.key not in view.settled], dict(reasons)


def _measuring(prompts: Sequence[SendablePrompt], count: int, salt: str, version: Digest) -> list[SendablePrompt]:
    """Return up to `count` questions of each slice whose right answer is known, by hash, so that the same ones are chosen again."""
    by_slice: dict[str | None, list[SendablePrompt]] = defaultdict(list)
    for one in sorted(prompts, key=lambda one: hash_share("teacher", salt, version, one.prompt_id)):
        if one.answered and len(by_slice[one.slice]) < count:
            by_slice[one.slice].append(one)
    return [one for group in sorted(by_slice, key=str) for one in by_slice[group]]


def bound(questions: Sequence[Question], budget: Left) -> tuple[int, float]:
    """Return the highest number of questions and the highest cost of asking `questions` within the budgets, without repeated requests."""
    cost = sum(one.highest for one in questions)
    return min(len(questions), budget.requests), min(cost, budget.cost)


def round_text(found: TeacherRound) -> str:
    """Return a round in one sentence: what was asked, answered and spent."""
    outcomes = ", ".join(f"{n:,} {name}" for name, n in found.outcomes.items()) or "none"
    return (
        f"{found.asked:,} questions without a right answer and {found.measuring:,} that measure the agreement were sent to {found.model} "
        f"({found.region}): {outcomes}; {found.cost:.4f} {found.currency}"
    )


def round_notes(found: TeacherRound) -> list[str]:
    """Return further sentences about a round: why questions were left out, why it stopped, and under which terms."""
    left_out = "; ".join(f"{n:,} because {reason}" for reason, n in sorted(found.left_out.items()))
    notes = [f"Questions that were not sent: {left_out}."] if left_out else []
    notes += [f"The asking ended early: {found.stopped}. The cycle goes on without the other answers."] if found.stopped else []
    consent = "of each user" if found.consent == "required" else "obtained elsewhere, as the loop file says"
    notes.append(
        f"Consent to sending: {consent}. Terms on training with the answers: {found.terms.text}, accepted by {found.terms.accepted_by} "
        f"on {found.terms.accepted_on}." + (" The texts were not masked, which the loop file acknowledges." if found.unmasked else "")
    )
    return notes


BELIEF_COLUMNS = ("teacher", "slice", "compared", "agreeing", "bounds", "confirmed", "believed", "refused", "reason")


def belief_rows(beliefs: Sequence[TeacherBelief]) -> list[tuple[str, ...]]:
    """Return the rows of the table of beliefs in teachers, in the order of BELIEF_COLUMNS."""
    return [
        (
            *(one.version[:8], one.slice or "–", f"{one.compared:,}", f"{one.agreeing:,}", f"{one.low:.2f} to {one.high:.2f}"),
            *(f"{one.confirmed:,}", f"{one.believed:,}", f"{one.refused:,}", one.reason),
        )
        for one in beliefs
    ]


def used(evidence: Mapping[str, Mapping[str, int]], destinations: Iterable[str]) -> tuple[int, int] | None:
    """Return how many answers of a teacher that count a training uses, and their number; None without any.

    `evidence` is `TrainingSet.evidence`; `destinations` are those that are used.
    """
    found = evidence.get("answer of a teacher")
    return None if found is None else (sum(n for name, n in found.items() if name in set(destinations)), sum(found.values()))


def described(question: Question) -> dict[str, Any]:
    """Return a question without its texts, for the output of a command."""
    return {
        **{"prompt_id": question.prompt.prompt_id, "slice": question.prompt.slice, "measures": question.measures},
        **{"expected_gain": question.gain, "highest_cost": question.highest},
    }
