"""What may be used of a lake: admitted traces, questions whose answers are left out, and the feedback on both, with the ids of prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import polars as pl

from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.loop import Loop
from ratchet.materializer.consent import spoken
from ratchet.materializer.governance import Governed, govern
from ratchet.materializer.labels.credible import without_newcomers
from ratchet.materializer.labels.scores import attach
from ratchet.materializer.labels.signals.sessions import session_signals
from ratchet.materializer.settled import Settled
from ratchet.materializer.texts import PLACE, TextFile

Identify = Callable[[pl.DataFrame, TextFile], pl.DataFrame]
"""Returns the ids and sides of prompts, as `identify_prompts`."""


@dataclass(frozen=True)
class Usable:
    """Traces that may be used. The frames have the columns of records.TRACES and those of `identify_prompts`, with keys of texts."""

    traces: pl.DataFrame
    """Admitted traces, and `repeats`: one row for equal traces."""
    questions: pl.DataFrame
    """Questions whose traces are left out for their answers, and to which somebody has given a right answer. The same columns; `answer` is
    null."""
    asked: pl.DataFrame
    """Every trace whose question is in `traces` or in `questions`, with the right answer that was logged with it."""
    refused: pl.DataFrame
    """source, id, response_id, reason: every other trace, with the rule that its question breaks."""
    feedback: pl.DataFrame
    """Feedback on the rows of `traces` and `questions` without signals, the result of `attach`."""
    signals: pl.DataFrame
    """Signals on the rows of `traces` and `questions`, the same columns: those that were sent, and those of sessions."""
    ignored: dict[str, int]
    """Reason -> number of feedback records that do not count."""
    out: dict[str, int]
    """Reason -> number of traces that are left out, as `govern` counts them."""
    texts: TextFile
    """The texts of all frames."""

    def every(self) -> pl.DataFrame:
        """Return `traces` and `questions` as one frame."""
        return pl.concat([self.traces, self.questions])

    def where(self, holds: pl.Expr) -> Usable:
        """Return the part whose rows fulfil a condition on the columns of `identify_prompts`. Feedback and counts stay whole."""
        return replace(self, traces=self.traces.filter(holds), questions=self.questions.filter(holds), asked=self.asked.filter(holds))


def usable(settled: Settled, loop: Loop, identify: Identify, as_of: datetime | None = None) -> Usable:
    """Apply the rules of `loop` to the records of a lake.

    Without `as_of`, new users do not wait, and no signals of sessions are computed.
    """
    governed = govern(settled.traces, loop.governance)
    heard = spoken(settled.feedback, settled.refusing)
    waited, seen = heard, heard.clear()
    if as_of is not None:
        seen = _signals(settled, governed, loop, as_of)
        if loop.snapshot.newcomer_days:
            wait = timedelta(days=loop.snapshot.newcomer_days)
            waited, seen = (without_newcomers(rows, settled.traces, as_of, wait) for rows in (heard, seen))
    attached, ignored = attach(waited, governed.asked, governed)
    is_signal = pl.col("kind") == FeedbackKind.SIGNAL.value
    feedback, signals = attached.filter(~is_signal), pl.concat([attached.filter(is_signal), attach(seen, governed.asked, governed)[0]])
    if len(heard) < len(settled.feedback):
        ignored |= {"no_consent": len(settled.feedback) - len(heard)}
    if len(waited) < len(heard):
        ignored |= {"newcomer": len(heard) - len(waited)}
    questions = _answered(governed, feedback)
    ids = identify(pl.concat([frame.select("messages", "tools", PLACE) for frame in (governed.used, questions)]), settled.texts)
    frames = (frame.join(ids, on=["messages", "tools"], nulls_equal=True) for frame in (governed.used, questions, governed.asked))
    traces, questions, asked = frames
    return Usable(traces, questions, asked, governed.refused, feedback, signals, ignored, governed.out, settled.texts)


def _signals(settled: Settled, governed: Governed, loop: Loop, as_of: datetime) -> pl.DataFrame:
    """Return the signals of sessions (records.FEEDBACK). Only content that may be used is read."""
    admitted = governed.asked.select("source", "id", admitted=True)
    traffic = settled.traces.filter(pl.col("origin") == "traffic").join(admitted, on=["source", "id"], how="left")
    content = pl.when(pl.col("admitted")).then(pl.col("messages")).alias("messages")
    return session_signals(traffic.with_columns(content), as_of, loop.signals.thanks, settled.texts)


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
