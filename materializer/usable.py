"""What may be used of a lake: admitted traces, questions whose answers are left out, and the feedback on both, with the ids of prompts.

The rules need all traces of a prompt together, and the scores are written in the order of the prompts' ids. So traces come in partitions by
their messages, and go into partitions by ranges of ids. Feedback finds its trace before, because it names a trace or a response anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
import polars as pl

from ratchet.contracts.data.records import SENT_SIGNALS, FeedbackKind
from ratchet.contracts.ids import Digest
from ratchet.contracts.loop import Loop
from ratchet.materializer.consent import spoken
from ratchet.materializer.governance import Governed, govern
from ratchet.materializer.labels.credible import without_newcomers
from ratchet.materializer.labels.masked_answers import without_masked
from ratchet.materializer.labels.scores import PARTITION, attach, counting, linked
from ratchet.materializer.labels.signals.sessions import SESSION, calls_of, signals_of_parts
from ratchet.materializer.partitioned.partitions import Partitions, by_hash, range_of
from ratchet.materializer.partitioned.prompts import Identities, PromptRoots, Sides
from ratchet.materializer.privacy.masked_values import placeholder_pattern
from ratchet.materializer.settled import Settled
from ratchet.materializer.texts import PLACE, TextFile
from ratchet.materializer.training_sets.prompt_sides import Placed
from ratchet.materializer.training_sets.questions import Question, known_questions

PlaceBy = Callable[[PromptRoots, Callable[[], list[Question]]], Callable[[Sequence[Digest]], list[Placed]]]
"""Decides the sides of new roots. It may ask for the questions whose right answer is known. Returns a function that returns the sides of
sorted roots."""
_IS_SIGNAL = pl.col("kind") == FeedbackKind.SIGNAL.value
_RANGE = "range"
_FEEDBACK = 100_000
"""Feedback records that are joined with their traces at once."""


@dataclass(frozen=True)
class UsablePart:
    """Traces of the prompts whose ids are in one range.

    The frames of traces have the columns of records.TRACES with keys of texts, and prompt_id, root_id, held, excluded and cluster.
    """

    traces: pl.DataFrame
    """Admitted traces, and `repeats`: one row for equal traces."""
    questions: pl.DataFrame
    """Questions whose traces are left out for their answers, and to which somebody has given a right answer. The same columns; `answer` is
    null."""
    asked: pl.DataFrame
    """Every trace whose question is in `traces` or in `questions`, with the right answer that was logged with it."""
    feedback: pl.DataFrame
    """Feedback on the rows of `traces` and `questions` without signals, the result of `attach`."""
    signals: pl.DataFrame
    """Signals on the rows of `traces` and `questions`, the same columns: those that were sent, and those of sessions."""

    def every(self) -> pl.DataFrame:
        """Return `traces` and `questions` as one frame."""
        return pl.concat([self.traces, self.questions])

    def where(self, holds: pl.Expr) -> UsablePart:
        """Return the part whose rows fulfil a condition on the columns of the sides. Feedback and signals stay whole."""
        return replace(self, traces=self.traces.filter(holds), questions=self.questions.filter(holds), asked=self.asked.filter(holds))


@dataclass(frozen=True)
class Usable:
    """Traces that may be used, in parts by ranges of the ids of prompts, and counts of the records that may not."""

    rows: tuple[Partitions, ...]
    """The frames of `UsablePart`, without the sides."""
    sides: Sides
    ignored: dict[str, int]
    """Reason -> number of feedback records that do not count."""
    out: dict[str, int]
    """Reason -> number of traces that are left out, as `govern` counts them."""
    refused_references: dict[str, int]
    """Reason -> number of right answers of traces whose question may not be used, or which have a newer one."""
    left_out: int
    """Number of feedback records without signals on rows that are neither in `traces` nor in `questions`."""
    sent_signals: int
    """Number of signals that were sent and count."""
    texts: TextFile
    """The texts of all frames."""
    identities: Identities

    def __iter__(self) -> Iterator[UsablePart]:
        """Yield the parts in the order of their ranges."""
        for number in range(self.rows[0].count):
            sides = self.sides.read(number)
            traces, questions, asked = (rows.read(number).join(sides, on="root_id") for rows in self.rows[:3])
            feedback, signals = (rows.read(number).drop(_RANGE) for rows in self.rows[3:])
            yield UsablePart(traces, questions, asked, feedback, signals)


def usable(settled: Settled, loop: Loop, place: PlaceBy, as_of: datetime | None = None, known: Identities | None = None) -> Usable:
    """Apply the rules of `loop` to the records of a lake.

    Without `as_of`, new users do not wait, and no signals of sessions are computed. `known` are the ids of a former result.
    Raises Retryable if the disk is full.
    """
    folder = settled.texts.folder
    links = _Links(settled, loop, as_of)
    wait = timedelta(days=loop.snapshot.newcomer_days) if as_of is not None else timedelta()
    users = links.users() if wait else None

    def waited(rows: pl.DataFrame) -> pl.DataFrame:
        return rows if users is None or as_of is None else without_newcomers(rows, users, as_of, wait)

    found, unattached, rest = Partitions(folder, settled.traces.count), Counter[str](), Counter[str]()
    for said in _slices(settled.feedback):
        heard = spoken(said, settled.refusing)
        counted = waited(heard)
        rest.update(no_consent=len(said) - len(heard), newcomer=len(heard) - len(counted))
        linked_rows, ignored_rows = links.linked(counted)
        unattached.update(ignored_rows)
        found.add(linked_rows, pl.col(PARTITION))
    seen = waited(links.session_signals())
    made = _Made(settled, loop, Identities(folder, settled.traces.count, known, loop.holdout.skipped))
    del links
    for number in range(settled.traces.count):
        made.add(number, found.read(number).drop(PARTITION), seen)
    ignored = {reason: made.ignored[reason] for reason in ("not_the_user", "other_sender", "replaced", "masked_answer")}
    ignored |= dict(sorted(unattached.items())) | rest
    return Usable(
        rows=made.rows,
        sides=Sides(folder, made.roots, lambda roots: place(roots, made.known_questions)),
        ignored={reason: n for reason, n in ignored.items() if n},
        out=_in_order(made.out),
        refused_references=dict(made.refused_references + Counter(settled.replaced_references)),
        left_out=made.left_out,
        sent_signals=made.sent_signals,
        texts=settled.texts,
        identities=made.identities,
    )


def _slices(feedback: pl.DataFrame) -> list[pl.DataFrame]:
    """Return parts of the feedback. It is joined row by row, and each join copies its rows."""
    return list(feedback.iter_slices(_FEEDBACK)) or [feedback]


def _in_order(out: Counter[str]) -> dict[str, int]:
    """Return the counts in the order of `govern`."""
    last = [reason for reason in ("rare_prompt", "duplicate") if reason in out]
    return {reason: out[reason] for reason in [*sorted(out.keys() - set(last)), *last]}


class _Links:
    """What feedback and signals need of the traces of all partitions: which may be used, and who sent the calls of a session."""

    def __init__(self, settled: Settled, loop: Loop, as_of: datetime | None) -> None:
        self._settled, self._loop, self._as_of = settled, loop, as_of
        self._sessions = Partitions(settled.texts.folder, settled.traces.count)
        named = _Named(settled.feedback)
        links, refused, users = list[pl.DataFrame](), list[pl.DataFrame](), list[pl.DataFrame]()
        for number, traces in enumerate(settled.traces):
            governed = govern(traces, loop.governance)
            asked = governed.asked.select("source", "id", "response_id", "verified", pl.lit(number, pl.UInt32).alias(PARTITION))
            links.append(named.those(asked))
            refused.append(named.those(governed.refused))
            if as_of is not None:
                users.append(traces.group_by("user").agg(pl.col("ingested").min()))
                self._sessions.add(_calls(traces, governed), by_hash(*SESSION))
        self._links, self._refused, self._users = pl.concat(links), pl.concat(refused), users

    def users(self) -> pl.DataFrame:
        """Return the users with the time at which their first trace was ingested."""
        return pl.concat(self._users).group_by("user").agg(pl.col("ingested").min())

    def session_signals(self) -> pl.DataFrame:
        """Return the signals of sessions (records.FEEDBACK without `batch`)."""
        if self._as_of is None:
            return self._settled.feedback.clear()
        signals = signals_of_parts(lambda: self._sessions, self._as_of, self._loop.signals.thanks, self._settled.texts)
        return signals.select(self._settled.feedback.columns)

    def linked(self, feedback: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
        """Return feedback with the partition of its trace, and reason -> number of records that refer to no trace that may be used."""
        return linked(feedback, self._links, self._refused)


class _Named:
    """The traces and the responses that feedback names, as sorted hashes, which are joined with many partitions."""

    def __init__(self, feedback: pl.DataFrame) -> None:
        self._ids, self._responses = (np.unique(_hashes(feedback.drop_nulls(key), key)) for key in ("trace_id", "response_id"))

    def those(self, traces: pl.DataFrame) -> pl.DataFrame:
        """Return the traces that may be named: all that are, and few others."""
        found = np.zeros(len(traces), dtype=bool)
        for hashes, key in ((self._ids, "id"), (self._responses, "response_id")):
            if len(hashes):
                asked = _hashes(traces, key)
                found |= hashes[np.minimum(hashes.searchsorted(asked), len(hashes) - 1)] == asked
        return traces.filter(pl.Series(found))


def _hashes(rows: pl.DataFrame, key: str) -> npt.NDArray[np.uint64]:
    found: npt.NDArray[np.uint64] = rows.select(pl.struct("source", pl.col(key).alias("key")).hash()).to_series().to_numpy()
    return found


def _calls(traces: pl.DataFrame, governed: Governed) -> pl.DataFrame:
    """Return the calls of sessions. Only content that may be used is read."""
    admitted = governed.asked.select("source", "id", admitted=True)
    traffic = traces.filter(pl.col("origin") == "traffic").join(admitted, on=["source", "id"], how="left")
    content = pl.when(pl.col("admitted")).then(pl.col("messages")).alias("messages")
    return calls_of(traffic.with_columns(content))


class _Made:
    """Adds the usable rows of one partition after the other to the ranges of their prompts."""

    def __init__(self, settled: Settled, loop: Loop, identities: Identities) -> None:
        folder, count = settled.texts.folder, settled.traces.count
        self._settled, self._loop, self.identities = settled, loop, identities
        self.rows = tuple(Partitions(folder, count) for _ in range(5))
        self.roots = PromptRoots(folder, count, settled.texts, loop.holdout.skipped)
        self.ignored, self.out, self.refused_references = Counter[str](), Counter[str](), Counter[str]()
        self.left_out = self.sent_signals = 0

    def known_questions(self) -> list[Question]:
        """Return prompts whose right answer is known."""
        asked, feedback = self.rows[2], self.rows[3]
        return known_questions(asked, feedback, self._settled.texts, self._loop.line.salt, self._loop.holdout.skipped)

    def add(self, number: int, found: pl.DataFrame, seen: pl.DataFrame) -> None:
        """Add a partition of traces. `found` is the feedback on it, `seen` are the signals of all sessions."""
        traces = self._settled.traces.read(number)
        governed = govern(traces, self._loop.governance)
        self.out.update(governed.out)
        refused = governed.refused.join(traces.filter(pl.col("reference").is_not_null()), on=["source", "id"], how="semi")
        self.refused_references.update(dict(refused.group_by("reason").len().iter_rows()))
        self.refused_references.update({"masked_answer": governed.masked_references} if governed.masked_references else {})
        every, ignored = counting(found, governed.asked, governed.merged)
        attached = without_masked(every, governed, placeholder_pattern(self._loop.privacy), self._settled.texts)
        self.ignored.update(ignored, masked_answer=len(every) - len(attached))
        own = seen.join(governed.asked.select("source", pl.col("id").alias("trace_id")), on=["source", "trace_id"], how="semi")
        feedback = attached.filter(~_IS_SIGNAL)
        signals = pl.concat([attached.filter(_IS_SIGNAL), attach(own, governed.asked, governed)[0]])
        questions = _answered(governed, feedback)
        prompts = pl.concat([frame.select("messages", "tools", PLACE) for frame in (governed.used, questions)])
        identified = self.identities.identify(number, prompts, self._settled.texts)
        self.roots.add(identified)
        ids = identified.drop(PLACE)
        placed = [frame.join(ids, on=["messages", "tools"], nulls_equal=True) for frame in (governed.used, questions)]
        placed.append(governed.asked.join(identified, on=["messages", "tools"], nulls_equal=True))
        for rows, frame in zip(self.rows, placed, strict=False):
            rows.add_digests(frame, "prompt_id")
        of = pl.concat([frame.select("source", "id", range_of("prompt_id", self.roots.count).alias(_RANGE)) for frame in placed[:2]])
        self.sent_signals += int(signals["signal"].is_in([signal.value for signal in SENT_SIGNALS]).sum())
        for rows, said in zip(self.rows[3:], (feedback, signals), strict=True):
            ranged = said.join(of, on=["source", "id"], how="inner")
            rows.add(ranged, pl.col(_RANGE))
            self.left_out += len(said) - len(ranged) if said is feedback else 0


def _answered(governed: Governed, feedback: pl.DataFrame) -> pl.DataFrame:
    """Return the questions to which the application, a user or a reviewer has given a right answer."""
    logged = governed.asked.filter(pl.col("reference").is_not_null()).select("messages", "tools").unique()
    written = feedback.filter(pl.col("text").is_not_null()).select("source", "id").unique()
    found = pl.concat(
        [
            governed.questions.join(logged, on=["messages", "tools"], how="semi", nulls_equal=True),
            governed.questions.join(written, on=["source", "id"], how="semi"),
        ]
    )
    return found.unique(["source", "id"]).sort("time", "source", "id")
