"""Asks a line's teacher for missing right answers, each at most once, and takes its answers in.

Each answer is stored before the next question is sent. The rows in the ledger say what was sent, so that a crash neither loses a stored
answer, nor sends a question twice, nor forgets what was spent. Of the one question in flight, the answer is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ratchet.contracts.cycle import Append, Entry, Lease, Row
from ratchet.contracts.data.datasets import HoldoutEdition, Snapshot
from ratchet.contracts.data.teaching import (
    OPEN,
    TeacherOutcome,
    TeacherReply,
    TeacherRound,
    cost_of,
    highest_tokens,
    teacher_version,
)
from ratchet.contracts.errors import ConfigError, RatchetError
from ratchet.contracts.ids import canonical, effect_name, teacher_stream
from ratchet.contracts.loop import TeacherSettings
from ratchet.contracts.ports import Teacher
from ratchet.contracts.rows import TeacherGot, TeacherSent, row_of
from ratchet.flows.core.asking.parquet_rows import parquet_of, rows_of
from ratchet.flows.core.asking.teaching import Left, Question, TeacherView, choose_questions_to_send, fold_teacher, key_of, left
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.engine.asking.review import AnswerSource, choose
from ratchet.flows.engine.context import TURN_SECONDS, LineContext, leased
from ratchet.flows.engine.ingest import ingest

_ALL = 1 << 31
_LOST_AT_ONCE = 3
"""Number of questions in a row without a reply after which the asking ends: each may have been paid for."""
_REJECTED_AT_ONCE = 8
"""Number of rejected questions in a row after which the asking ends, because the settings are wrong and not the texts."""


@dataclass(frozen=True)
class Prepared:
    """What would be sent now."""

    questions: list[Question]
    left_out: dict[str, int]
    budget: Left
    gains: dict[str, float]
    """prompt_id -> expected gain of a right answer."""
    keys: dict[str, str]
    """Key -> prompt_id of all prompts that may be sent."""


def settings_of(context: LineContext) -> TeacherSettings:
    """Return the settings of the line's teacher. Raises ConfigError if the loop file names none."""
    if context.loop.teacher is None:
        raise ConfigError(f"line {context.line!r} has no teacher; add a section [teacher] to its loop file")
    return context.loop.teacher


def teacher_view(context: LineContext) -> TeacherView:
    """Read the rows of the line's teacher and fold them."""
    return fold_teacher(context.ledger.read(teacher_stream(context.line)))


def prepare(context: LineContext, snapshot: Snapshot) -> Prepared:
    """Return what would be sent now, chosen from a snapshot. Sends nothing."""
    settings, view, salt = settings_of(context), teacher_view(context), context.loop.line.salt
    chosen = choose(context, snapshot, _ALL).questions
    may_be_sent = context.datasets.sendable(snapshot)
    questions, left_out = choose_questions_to_send(chosen, may_be_sent, snapshot.teachers, settings, salt, view)
    version = teacher_version(settings)
    return Prepared(
        questions,
        left_out,
        left(settings, view, context.clock.now()),
        {one.prompt_id: one.expected_gain for one in chosen},
        {key_of(salt, version, one.prompt_id): one.prompt_id for one in may_be_sent.prompts},
    )


def ask_before(context: LineContext, cycle: CycleView, key: str, edition: HoldoutEdition) -> tuple[datetime, TeacherRound]:
    """Ask the teacher for a cycle, once. Return the time up to which records belong to the cycle's snapshot, and what was asked.

    The holdout edition is frozen already, so that no answer can change it. Failures of the teacher end the asking and not the cycle.
    """
    found = next((one for one in teacher_view(context).rounds if one[1] == cycle.id), None)
    if found is None:
        before = context.datasets.freeze(f"{effect_name(cycle.id, key)}/ask", cycle.opened_at, edition)
        at, asked = ask(context, before, cycle=cycle.id)
    else:
        at, _, asked = found
    return max(at, cycle.opened_at), asked


def ask(context: LineContext, snapshot: Snapshot, cycle: str = "", actor: str = "") -> tuple[datetime, TeacherRound]:
    """Send the questions that `prepare` chooses, take the answers in, and return the time and content of the row that says so.

    Answers of an asking that was interrupted are taken in, too. Raises Retryable if another process asks or ingests for a long time.
    """
    settings = settings_of(context)
    with leased(context, "asking the teacher", f"teacher/{context.line}", TURN_SECONDS) as lease:
        asking = _Asking(context, settings, lease)
        prepared = prepare(context, snapshot)
        stopped = asking.send(prepared.questions)
        view = asking.view()
        kept = _take_in(context, view)
        missing = [key for key, (sent, _) in view.open.items() if not sent.measures]
        asked = sorted(prepared.keys[key] for key in missing if key in prepared.keys)
        content = TeacherRound(
            **_about(context, settings),
            cycle=cycle,
            actor=actor,
            asked=len(missing),
            measuring=len(view.open) - len(missing),
            outcomes=view.outcomes(),
            left_out=prepared.left_out,
            cost=round(view.cost(), 9),
            kept=kept,
            questions=context.artifacts.put(canonical(asked)),
            expected=round(sum(prepared.gains.get(one, 0.0) for one in asked), 6),
            stopped=stopped,
        )
        entry = asking.append(row_of("round", content, cycle))
    return entry.at, content


def _about(context: LineContext, settings: TeacherSettings) -> dict[str, Any]:
    return {
        **{"version": teacher_version(settings)[:16], "url": settings.url, "model": settings.model, "region": settings.region},
        **{"consent": settings.consent, "unmasked": not context.loop.privacy.mask, "terms": settings.terms, "currency": settings.currency},
    }


class _Asking:
    """The rows of one asking, under its lease."""

    def __init__(self, context: LineContext, settings: TeacherSettings, lease: Lease) -> None:
        self._context, self._settings, self._lease = context, settings, lease
        self._stream = teacher_stream(context.line)

    def view(self) -> TeacherView:
        """Read and fold the rows."""
        return teacher_view(self._context)

    def append(self, row: Row) -> Entry:
        """Append a row. Only the holder of the lease does."""
        ledger, now = self._context.ledger, self._context.clock.now()
        return ledger.append([Append(stream=self._stream, after=len(ledger.read(self._stream)), rows=(row,))], self._lease, now)[-1]

    def send(self, questions: list[Question]) -> str:
        """Send the questions one after the other. Return why it ended early; empty if it did not."""
        lost = rejected = 0
        teacher = self._context.teacher
        if teacher is None:
            return "no client of the teacher is configured"
        view = self.view()
        budget = left(self._settings, view, self._context.clock.now())
        for number, question in enumerate(questions, 1):
            refusal = budget.permits(question)
            if refusal is not None:
                return refusal
            self.append(row_of("sent", TeacherSent(highest=question.highest, measures=question.measures), question.key))
            reply, got = self._answered(teacher, question, budget.requests)
            self.append(row_of("got", got, question.key))
            budget = Left(budget.requests - got.requests, budget.cost - got.cost)
            self._context.progress("asking the teacher", number, len(questions))
            lost = lost + 1 if reply.outcome is TeacherOutcome.LOST else 0
            rejected = rejected + 1 if reply.outcome is TeacherOutcome.REJECTED else 0
            if reply.outcome in OPEN or lost >= _LOST_AT_ONCE or rejected >= _REJECTED_AT_ONCE:
                return f"the teacher is {reply.outcome}: {reply.detail}" if reply.outcome in OPEN else f"{reply.detail}, several times"
        return ""

    def _answered(self, teacher: Teacher, question: Question, requests: int) -> tuple[TeacherReply, TeacherGot]:
        """Ask one question, with at most `requests` requests. What a reply breaks is lost, so that none can stop a cycle."""
        try:
            reply = teacher.ask(question.prompt.messages, requests)
            return reply, self._got(question, reply)
        except RatchetError:
            raise
        except Exception as error:  # the reply may be anything
            reply = TeacherReply(outcome=TeacherOutcome.LOST, detail=f"its reply caused an unexpected {type(error).__name__}")
            return reply, self._got(question, reply)

    def _got(self, question: Question, reply: TeacherReply) -> TeacherGot:
        """Store an answer, and return the row about it."""
        answer = None
        if reply.outcome is TeacherOutcome.ANSWERED and reply.text is not None:
            row = {
                **{"prompt_id": question.prompt.prompt_id, "prompt": canonical(question.prompt.messages).decode()},
                **{"answer": reply.text, "trace": question.prompt.trace, "user": None},
                **{"teacher": teacher_version(self._settings)[:16], "time": self._context.clock.now().isoformat()},
            }
            answer = self._context.artifacts.put(parquet_of([row]))
        return TeacherGot(
            outcome=reply.outcome,
            cost=self._cost(question, reply),
            requests=reply.requests,
            input_tokens=reply.input_tokens,
            output_tokens=reply.output_tokens,
            answer=answer,
            detail=reply.detail,
        )

    def _cost(self, question: Question, reply: TeacherReply) -> float:
        """Return what a question cost. Requests that a server refuses cost nothing; without a count of tokens, it is the highest cost."""
        if reply.outcome in OPEN or reply.outcome is TeacherOutcome.REJECTED:
            return 0.0
        if reply.input_tokens is None or reply.output_tokens is None or reply.outcome is TeacherOutcome.LOST:
            return question.highest
        most = 10 * (highest_tokens(question.prompt.messages) + self._settings.max_tokens)  # a server may not spend the budget by a word
        return cost_of(self._settings, min(reply.input_tokens, most), min(reply.output_tokens, most))


def _take_in(context: LineContext, view: TeacherView) -> int:
    """Ingest the answers since the last round. Return how many are new. The same answers again change nothing."""
    columns = ("answer", "trace", "teacher", "time")
    rows = [row for key in view.answers() for row in rows_of(context.artifacts.get(key), columns)]  # none of erased people
    if not rows:
        return 0
    records = [(row["trace"], {name: row[name] for name in ("answer", "teacher", "time")}) for row in rows]
    return ingest(context, [AnswerSource(records, "answers of a teacher")], TURN_SECONDS).feedback.kept
