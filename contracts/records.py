"""Records in bulk, declared once as plain data: materializer and trainers build their Arrow schemas from it.

A pydantic object per row would be the slowest part of an ingest; so rows are frames, and these tables are their law.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Column(NamedTuple):
    """One column: `type` is string | double | long | boolean | timestamp (UTC, microseconds) | list<string>."""

    name: str
    type: str
    required: bool
    doc: str


TRACES: tuple[Column, ...] = (
    Column("source", "string", True, "name of the source in the loop file"),
    Column("id", "string", True, "identity within the source; OTLP: traceId:spanId"),
    Column("time", "timestamp", True, "start of the call"),
    Column("ingested", "timestamp", True, "when the batch was committed"),
    Column("batch", "string", True, "content digest of the batch that brought it"),
    Column("origin", "string", True, "traffic | probe | mirror"),
    Column("user", "string", False, "end user, as logged"),
    Column("session", "string", False, "conversation"),
    Column("response_id", "string", False, "gen_ai.response.id, for feedback that names only that"),
    Column("messages", "string", False, "JSON list of {role, content}; null without consent"),
    Column("answer", "string", False, "the answer's text; null without consent"),
    Column("model", "string", False, "model as logged"),
    Column("model_version", "string", False, "version tag where it is one of ours, from the router's attribution"),
    Column("status", "string", True, "ok | error | refused: a request that no version could have served; no evidence about one"),
    Column("finish_reason", "string", False, "stop | length | …"),
    Column("latency_ms", "double", False, "end minus start, milliseconds"),
    Column("input_tokens", "long", False, ""),
    Column("output_tokens", "long", False, ""),
    Column("region", "string", False, ""),
    Column("consent", "boolean", True, "true only where the record says so"),
    Column("reference", "string", False, "the right answer where the application logged one, independent of this answer"),
    Column("slice", "string", False, "the application's own grouping (an intent, a product), for the gate's slices"),
)

FEEDBACK: tuple[Column, ...] = (
    Column("source", "string", True, ""),
    Column("trace_id", "string", False, "id of the trace in its source; null where only response_id is known"),
    Column("response_id", "string", False, ""),
    Column("rater", "string", False, "who says so; null is one anonymous rater"),
    Column("kind", "string", True, "a FeedbackKind"),
    Column("time", "timestamp", True, "when it was given"),
    Column("ingested", "timestamp", True, ""),
    Column("batch", "string", True, ""),
    Column("value", "double", False, "rating in [0, 1]"),
    Column("text", "string", False, "a correction or a reference"),
)

QUARANTINE: tuple[Column, ...] = (
    Column("source", "string", True, ""),
    Column("batch", "string", True, ""),
    Column("position", "string", True, "where in the batch: line, and index within the line"),
    Column("reason", "string", True, "the short word that is counted"),
    Column("detail", "string", False, "what was wrong, without the content"),
    Column("ingested", "timestamp", True, ""),
)

SAMPLES: tuple[Column, ...] = (
    Column("prompt_id", "string", True, "digest of the normalised prompt"),
    Column("prompt", "string", True, "JSON list of {role, content}"),
    Column("answer", "string", True, ""),
    Column("reward", "double", False, "in [0, 1]; null where every scorer abstained"),
    Column("tier", "string", False, "the tier that decided"),
    Column("parts", "string", True, "JSON {scorer: score or null}"),
    Column("votes", "long", True, "ratings behind a feedback reward"),
    Column("repeats", "long", True, "traces of the very same words that it stands for, itself included; else 1"),
    Column("trace", "string", False, "source/id of the trace; null for a probe's answer"),
    Column("user", "string", False, "pseudonym (salted hash) of whose word it rests on, for caps per person"),
    Column("origin", "string", True, "traffic | probe | correction"),
    Column("model_version", "string", False, "version of ours that wrote a logged answer, from the router's attribution"),
    Column("slice", "string", False, ""),
)

PROMPTS: tuple[Column, ...] = (
    Column("prompt_id", "string", True, ""),
    Column("prompt", "string", True, "JSON list of {role, content}"),
    Column("reference", "string", False, "the right answer, where known"),
    Column("reference_kind", "string", False, "logged | reference | correction"),
    Column("slice", "string", False, ""),
)

PAIRS: tuple[Column, ...] = (
    Column("prompt_id", "string", True, ""),
    Column("prompt", "string", True, "JSON list of {role, content}; assistant messages may have tool_calls, role tool answers them"),
    Column("chosen", "string", True, "text, or a canonical JSON assistant message {role, content, tool_calls}"),
    Column("rejected", "string", True, "likewise"),
    Column("tools", "string", False, "JSON list of the schemas that the assistant could call"),
    Column("tier", "string", True, "the tier that both answers share"),
    Column("margin", "double", True, "reward(chosen) - reward(rejected)"),
    Column("weight", "double", True, "P(the order is right) - P(it is reversed)"),
    Column("slice", "string", False, ""),
)


DEMONSTRATIONS: tuple[Column, ...] = (
    Column("prompt_id", "string", True, ""),
    Column("prompt", "string", True, "JSON list of {role, content}"),
    Column("answer", "string", True, "an answer that counts as right"),
    Column("source", "string", True, "correction | reference | verifiable | feedback | judge: who says that it is right"),
    Column("weight", "double", True, "2 P(right) - 1"),
    Column("slice", "string", False, ""),
)
"""What SFT imitates, and DPO rehearses where there is no pair: users' corrections, and answers of the line's own traffic and probe that
were judged right."""


class FeedbackKind(StrEnum):
    """What a person said."""

    RATING = "rating"
    CORRECTION = "correction"
    """The right answer, given because the model's was wrong: fit for training, not for a holdout, which it would fill with failures."""
    REFERENCE = "reference"
    """The right answer, given whatever the model said (a reviewer's label): fit for both."""


class Tier(StrEnum):
    """Tiers of evidence, strongest first."""

    VERIFIABLE = "verifiable"
    FEEDBACK = "feedback"
    JUDGE = "judge"
