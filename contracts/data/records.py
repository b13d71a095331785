"""Schemas of bulk records as plain data. The materializer and the trainers build their Arrow schemas from them.

A column that a release adds to a table of the lake is optional and comes last. A table that lacks it gets it at the next ingest, with null
in the rows that it has. Rows are processed as data frames. One pydantic object per row would be the slowest part of an ingest.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

_SLICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/-]{0,63}")


def is_slice_name(text: str) -> bool:
    """Return whether `text` can name a slice: it is short and plain, because slice names become part of metric names and reports."""
    return _SLICE_NAME.fullmatch(text) is not None


class Column(NamedTuple):
    """A column. `type` is string | double | long | boolean | timestamp (UTC, microseconds) | list<string>."""

    name: str
    type: str
    required: bool
    doc: str


TRACES: tuple[Column, ...] = (
    Column("source", "string", True, "name of the source in the loop file"),
    Column("id", "string", True, "identity within the source; OTLP: traceId:spanId"),
    Column("time", "timestamp", True, "start of the call"),
    Column("ingested", "timestamp", True, "when the batch was committed"),
    Column("batch", "string", True, "content digest of the batch that contained the record"),
    Column("origin", "string", True, "traffic | probe | mirror"),
    Column("user", "string", False, "pseudonym of the end user"),
    Column("session", "string", False, "pseudonym of the conversation id"),
    Column("response_id", "string", False, "gen_ai.response.id; matches feedback that refers to the response only"),
    Column("messages", "string", False, "JSON list of messages (contracts/conversation.py); null without consent"),
    Column("answer", "string", False, "the answer's text, or a JSON message if it calls tools; null without consent"),
    Column("model", "string", False, "model as logged"),
    Column("model_version", "string", False, "tag of this line's version, from the router's attribution"),
    Column("status", "string", True, "ok | error | refused (an invalid request, which is no evidence about any version)"),
    Column("finish_reason", "string", False, "stop | length | partial | …"),
    Column("latency_ms", "double", False, "end minus start, milliseconds"),
    Column("input_tokens", "long", False, ""),
    Column("output_tokens", "long", False, ""),
    Column("region", "string", False, ""),
    Column("consent", "boolean", True, "true only if the record states consent"),
    Column("reference", "string", False, "right answer logged by the application, independent of this answer; later ones are feedback"),
    Column("slice", "string", False, "group assigned by the application (an intent, a product), for the gate's slices"),
    Column("sender", "string", False, "roles and name of the credential; null for files"),
    Column("verified", "boolean", False, "whether the router has signed the span, so that model_version is evidence"),
    Column("consent_time", "timestamp", False, "when the consent was given; null: at `time`"),
    Column("tools", "string", False, "JSON list of the tools that the model could call"),
    Column("confidentiality", "string", False, "label of the application, for `governance.confidentiality`"),
    Column("third_party", "boolean", False, "whether the user consents to sending the prompt to a third party; null: nothing is said"),
)

FEEDBACK: tuple[Column, ...] = (
    Column("source", "string", True, ""),
    Column("trace_id", "string", False, "id of the trace in its source; null if only response_id is known"),
    Column("response_id", "string", False, ""),
    Column("rater", "string", False, "pseudonym of the user who gave the feedback; null counts as one anonymous rater"),
    Column("kind", "string", True, "a FeedbackKind"),
    Column("time", "timestamp", True, "time of the feedback"),
    Column("ingested", "timestamp", True, ""),
    Column("batch", "string", True, ""),
    Column("value", "double", False, "rating in [0, 1]"),
    Column("text", "string", False, "a correction or a right answer"),
    Column("sender", "string", False, "as in the traces"),
    Column("trusted", "boolean", False, "whether it counts although its rater is not the user of the trace"),
    Column("signal", "string", False, "a Signal, of feedback of this kind; the version of the teacher, of its answers"),
)

CONSENT: tuple[Column, ...] = (
    Column("source", "string", True, ""),
    Column("subject", "string", True, "a ConsentSubject"),
    Column("id", "string", True, "id of the trace or response, or pseudonym of the session or user"),
    Column("given", "boolean", True, "true: consent is given; false: it is refused or withdrawn"),
    Column("time", "timestamp", True, "when the person said so"),
    Column("ingested", "timestamp", True, ""),
    Column("batch", "string", True, ""),
    Column("sender", "string", False, "as in the traces"),
    Column("operator", "boolean", True, "whether the operator said so, whose consent counts for the traces of all senders"),
)
"""Statements about consent, except those that a row of TRACES makes itself with `consent` and `consent_time`. Rows are never changed: the
state of a trace is computed from all statements about it (materializer/consent.py)."""

QUARANTINE: tuple[Column, ...] = (
    Column("source", "string", True, ""),
    Column("batch", "string", True, ""),
    Column("position", "string", True, "position in the batch: line, and index within the line"),
    Column("reason", "string", True, "short identifier that reports count"),
    Column("detail", "string", False, "description of the error, without the content"),
    Column("ingested", "timestamp", True, ""),
    Column("sender", "string", False, "as in the traces"),
    Column("id", "string", False, "identity of the entry; all rows about one record or part of a record have the same"),
    Column("kind", "string", False, "traces | feedback"),
    Column("origin", "string", False, "file of the record, or `received by` and the sender"),
    Column("format", "string", False, "format of the batch"),
    Column("offset", "long", False, "first byte of the record in its file or request; a compressed file is read decompressed"),
    Column("length", "long", False, "bytes of the record, without the end of its line"),
    Column("digest", "string", False, "SHA-256 of these bytes; null if the record could not be read completely"),
    Column("cut", "boolean", False, "whether the file ended before the end of the record's line"),
    Column("parts", "long", False, "number of parts of the record that the row stands for"),
    Column("user", "string", False, "pseudonym of the user, if it can be read"),
    Column("expires", "timestamp", False, "when the kept bytes are deleted; null if none were kept"),
    Column("state", "string", False, "resolved: a later ingest or replay has stored the record; null: it is bad"),
    Column("release", "string", False, "release of Ratchet that wrote the row"),
)
"""Rows are never changed. The newest row of an `id` counts. The masked bytes of a record are not in the table, so that they can be deleted
(materializer/quarantine/kept.py)."""

SAMPLES: tuple[Column, ...] = (
    Column("prompt_id", "string", True, "digest of the normalised prompt"),
    Column("prompt", "string", True, "JSON list of messages (contracts/conversation.py)"),
    Column("answer", "string", True, "text, or a JSON message if it calls tools (contracts/conversation.py)"),
    Column("reward", "double", False, "in [0, 1]; null if every scorer abstained"),
    Column("tier", "string", False, "tier that determined the reward"),
    Column("parts", "string", True, "JSON {scorer: score or null}"),
    Column("votes", "long", True, "number of ratings in a feedback reward"),
    Column("repeats", "long", True, "number of identical traces that this row represents, itself included; else 1"),
    Column("trace", "string", False, "source/id of the trace; null for probe answers"),
    Column("user", "string", False, "pseudonym (salted hash) of the user who gave the feedback, for limits per user"),
    Column("origin", "string", True, "traffic | probe | correction | teacher"),
    Column("model_version", "string", False, "version of this line that generated a logged answer, from the router's attribution"),
    Column("slice", "string", False, ""),
    Column("tools", "string", False, "JSON list of the tools that the model could call"),
)

PROMPTS: tuple[Column, ...] = (
    Column("prompt_id", "string", True, ""),
    Column("prompt", "string", True, "JSON list of messages (contracts/conversation.py)"),
    Column("reference", "string", False, "right answer, if known"),
    Column("reference_kind", "string", False, "logged | reference | correction"),
    Column("slice", "string", False, ""),
    Column("tools", "string", False, "JSON list of the tools that the model could call"),
)

GRPO_PROMPTS: tuple[Column, ...] = (
    *PROMPTS,
    Column("probe_rewards", "string", False, "a ProbeRewards; null without a probe, or with fewer than two scored answers"),
)
"""Prompts of a training set for GRPO. A set of an older release lacks the last column."""

PAIRS: tuple[Column, ...] = (
    Column("prompt_id", "string", True, ""),
    Column("prompt", "string", True, "JSON list of {role, content}; assistant messages may have tool_calls, role tool answers them"),
    Column("chosen", "string", True, "text, or a JSON message if it calls tools"),
    Column("rejected", "string", True, "same format as chosen"),
    Column("tools", "string", False, "JSON list of the tool schemas available to the assistant"),
    Column("tier", "string", True, "tier that determined both rewards"),
    Column("margin", "double", True, "reward(chosen) - reward(rejected)"),
    Column("weight", "double", True, "P(the order is right) - P(it is reversed)"),
    Column("slice", "string", False, ""),
)


DEMONSTRATIONS: tuple[Column, ...] = (
    Column("prompt_id", "string", True, ""),
    Column("prompt", "string", True, "JSON list of messages (contracts/conversation.py)"),
    Column("answer", "string", True, "an answer that counts as right"),
    Column(
        "source", "string", True, "evidence that it is right: correction | reference | verifiable | feedback | judge | teacher | signal"
    ),
    Column("weight", "double", True, "2 P(right) - 1; less if near-duplicate prompts have the same answer"),
    Column("slice", "string", False, ""),
    Column("tools", "string", False, "JSON list of the tools that the model could call"),
)
"""Training targets of SFT, which DPO also uses for prompts without a pair: users' corrections, and right answers from the line's traffic
and probe."""

DEVELOPMENT: tuple[Column, ...] = (
    *PROMPTS,
    Column("answer", "string", False, "an answer that counts as right, with the format of a demonstration; empty if none is known"),
)
"""Development prompts: a job measures with them how long to train, and never trains on them. A row has a reference, an answer, or both."""

CROSS_VALIDATION: tuple[Column, ...] = (
    *DEVELOPMENT,
    Column("cluster", "string", True, "cluster of near-duplicate prompts, named after one of them"),
)
"""Prompts that are trained on. A job finds the number of steps by cross-validation over them. Rows without a reference and an answer are
not measured."""


PARTIAL = "partial"
"""`finish_reason` of an answer that its caller got in part only. Such an answer is not stored, and its trace is never used."""


class ProbeRewards(StrEnum):
    """Whether the rewards of the probe's answers to a prompt differ."""

    MIXED = "mixed"
    EQUAL = "equal"


class FeedbackKind(StrEnum):
    """Kind of a feedback record."""

    RATING = "rating"
    CORRECTION = "correction"
    """Right answer to a prompt that the model answered wrong. It is used for training only: in the holdout, corrections would
    overrepresent failures."""
    REFERENCE = "reference"
    """Right answer given independently of the model's answer (a reviewer's label). It is used for training and for the holdout."""
    SIGNAL = "signal"
    """What a user did with the answer, without a rating. The column `signal` says what. It has no weight before its agreement with the
    line's ratings is measured (materializer/labels/signals)."""
    LOGGED = "logged"
    """Right answer that the application logged with a record of a trace that was stored before. It counts as the column `reference` of the
    trace, where the newest one counts (materializer/late_references.py). No credential may send it: ingest makes it."""
    TEACHER = "teacher"
    """Answer of a teacher. It is used for training only, once a scorer confirms it or the teacher's agreement with people is measured
    (materializer/labels/teachers.py). It never becomes a reference. No credential may send it."""


class Signal(StrEnum):
    """What a user did with an answer. A name without a prefix is sent by the application."""

    REGENERATED = "regenerated"
    EDITED = "edited"
    """The user changed the answer before using it."""
    COPIED = "copied"
    ABANDONED = "abandoned"
    THANKED = "thanked"
    ASKED_AGAIN = "asked_again"
    TOOL_ERROR = "tool_error"
    """A tool that the answer called reported an error."""
    SESSION_REGENERATED = "session.regenerated"
    """Computed from the calls of a session, like all names with this prefix. Such a signal is never stored in the lake."""
    SESSION_ABANDONED = "session.abandoned"
    SESSION_THANKED = "session.thanked"
    SESSION_ASKED_AGAIN = "session.asked_again"
    SESSION_TOOL_ERROR = "session.tool_error"

    @property
    def computed(self) -> bool:
        """Whether it is computed from the calls of a session, and never sent."""
        return self.value.startswith("session.")

    @property
    def says_right(self) -> bool:
        """Whether it suggests that the answer is right. Otherwise it suggests that the answer is wrong."""
        return self in (Signal.COPIED, Signal.THANKED, Signal.SESSION_THANKED)


SENT_SIGNALS = tuple(signal for signal in Signal if not signal.computed)
"""Signals that an application may send."""


class ConsentSubject(StrEnum):
    """What a statement about consent refers to."""

    TRACE = "trace"
    RESPONSE = "response"
    """The trace with this response id."""
    SESSION = "session"
    """All traces of a session, also later ones."""
    USER = "user"
    """All traces of a user, also later ones, and the user's feedback."""
    TRACE_THIRD_PARTY = "trace_third_party"
    """Sending the prompt of a trace to a third party."""
    USER_THIRD_PARTY = "user_third_party"
    """Sending the prompts of a user to a third party, also later ones."""


class Tier(StrEnum):
    """Tiers of evidence for a reward, strongest first. A reward of the loop file belongs to one of the first three."""

    VERIFIABLE = "verifiable"
    FEEDBACK = "feedback"
    JUDGE = "judge"
    TEACHER = "teacher"
    """Answers of a teacher that no scorer confirms, and whose teacher agrees with people. They decide where nothing stronger does."""
    SIGNAL = "signal"
    """Signals of users that agree with the line's ratings. They decide only where nothing else does."""
