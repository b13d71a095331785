"""Settings of the traces: where they come from, which may be used, how long they are kept, and what happens to bad records."""

from __future__ import annotations

from datetime import datetime
from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ratchet.contracts.loop.field_types import Days, Name, Positive, Seconds, Share
from ratchet.contracts.model import Frozen

DIGEST, CONSTANT = "#", "="
"""Key of a mapping that stands for the digest of the record; beginning of one that is a text for all records."""
_SAME_FOR_ALL = ("timestamp", "model", "region", "slice", "confidentiality")


class SourceSettings(Frozen):
    """Settings of one trace source."""

    name: Name
    """Name of the source. It is part of every record's identity, so renaming a source makes all its records new."""
    kind: str
    """Entry point name of an installed source (group `ratchet.sources`). otlp: files of OTLP requests, as the OpenTelemetry collector
    writes them. jsonl: files with one record per line. parquet: tables. langfuse: Langfuse's blob export or API. litellm: LiteLLM's
    log. receiver: the built-in OTLP/HTTP endpoint."""
    path: str | None = None
    """A file, a folder that is read recursively, or a place on S3 (s3://BUCKET/PREFIX). Required for otlp, jsonl, parquet and litellm, not
    allowed for receiver. langfuse has a path or `options.base_url`."""
    mapping: dict[str, str] = Field(default_factory=dict)
    """For jsonl, parquet and langfuse: Ratchet's column -> dotted key in the record, for keys with different names. For jsonl and parquet
    also: `id = "#"` takes the digest of the whole record, and `=TEXT` states one text for all records that have none (only of
    `timestamp`, `model`, `region`, `slice` and `confidentiality`)."""
    queue: str | None = None
    """URL of a queue of SQS that gets the notifications of the bucket of `path`. They wake up the line, which otherwise looks every half
    minute. Each line needs a queue of its own."""
    consent_places: tuple[str, ...] | None = None
    """Places whose *yes* counts as consent, for example `ai.telemetry.metadata`, `langfuse.trace.metadata`, or `plain` for attributes
    without a beginning. Default: `metadata` for otlp, the receiver and observations of Langfuse; none for other JSON Lines. The key
    `consent` of JSON Lines, or the key that `mapping` names for it, always counts. A refusal counts from every place, also from those that
    are not named here. docs/howto/connect-an-application.md lists the places."""
    rating_scale: tuple[float, float] | None = None
    """The worst and the best number of the source's ratings, for example `[1, 5]`, or `[5, 1]` if 1 is the best. Default: 0 and 1. A batch
    in which three ratings, and a tenth of them, are above 1 has another scale: all its ratings are quarantined until it is stated. Not
    for langfuse, whose `options.scores` state the scale of each score."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the source, which validates them."""

    @model_validator(mode="after")
    def _made_up_values(self) -> SourceSettings:
        for column, key in self.mapping.items():
            if key != DIGEST and not key.startswith(CONSTANT):
                continue
            if self.kind not in ("jsonl", "parquet"):
                raise ValueError(f"source {self.name!r}: mapping.{column} = {key!r} needs a source of the kind jsonl or parquet")
            if key == DIGEST and column != "id":
                raise ValueError(f"source {self.name!r}: only mapping.id can be {DIGEST!r}, the digest of the record")
            if key.startswith(CONSTANT) and (column not in _SAME_FOR_ALL or key == CONSTANT):
                raise ValueError(
                    f"source {self.name!r}: mapping.{column} = {key!r}: only {', '.join(_SAME_FOR_ALL)} can be a text for all records"
                )
            if column == "timestamp" and key.startswith(CONSTANT):
                try:
                    datetime.fromisoformat(key.removeprefix(CONSTANT))
                except ValueError as error:
                    raise ValueError(f"source {self.name!r}: mapping.timestamp = {key!r} is no date or time such as =2026-01-31") from error
        return self

    @model_validator(mode="after")
    def _scale_of_numbers(self) -> SourceSettings:
        if self.rating_scale is not None:
            if self.kind == "langfuse":
                raise ValueError(f"source {self.name!r}: kind 'langfuse' takes no rating_scale; state `min` and `max` in options.scores")
            if self.rating_scale[0] == self.rating_scale[1] or not all(map(isfinite, self.rating_scale)):
                raise ValueError(f"source {self.name!r}: rating_scale must be two different numbers, the worst and the best rating")
        return self

    @model_validator(mode="after")
    def _queue_of_a_bucket(self) -> SourceSettings:
        if self.queue is not None and not (self.path or "").startswith("s3://"):
            raise ValueError(f"source {self.name!r}: a queue needs a path on S3 (s3://BUCKET/PREFIX)")
        if self.queue is not None and not self.queue.startswith(("https://", "http://")):
            raise ValueError(
                f"source {self.name!r}: queue must be the URL of a queue, such as https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"
            )
        return self

    @model_validator(mode="after")
    def _path_where_read(self) -> SourceSettings:
        if self.kind in ("otlp", "litellm", "receiver") and self.mapping:
            raise ValueError(f"source {self.name!r}: kind {self.kind!r} takes no mapping; a source of the kind jsonl takes one")
        if self.kind in ("otlp", "jsonl", "parquet", "litellm", "receiver") and (self.kind == "receiver") == (self.path is not None):
            raise ValueError(f"source {self.name!r}: kind {self.kind!r} " + ("takes no path" if self.path else "needs a path"))
        return self


class GovernanceSettings(Frozen):
    """Rules for which traces may be used. Traces with missing information are excluded."""

    consent: Literal["required", "assumed"] = "required"
    """required: use only traces that record consent. assumed: consent for all traffic is obtained elsewhere. Recorded in every snapshot."""
    regions: tuple[str, ...] = ()
    """Regions whose traces may be used. Empty: all regions."""
    confidentiality: tuple[str, ...] = ()
    """Confidentiality labels whose traces may be used, for example `public`. Empty: all labels, and traces without one."""
    max_chars: Positive = 32_000
    """Maximum length of a prompt or an answer in characters. Longer ones are excluded and counted."""
    min_users: Positive = 1
    """Minimum number of different users who have sent a prompt (k-anonymity, after masking). Rarer prompts are excluded and counted. All
    traces without a user count as those of one user."""


class RetentionSettings(Frozen):
    """How long rows of the lake and models are kept. The service deletes older ones once a day, also from the artifacts (`ratchet gc`)."""

    traces: Days | None = None
    """Days after the call for which traces are kept. None: without a limit. Editions and training sets lose the rows of deleted traces."""
    feedback: Days | None = None
    """Days for which ratings, corrections and references are kept. None: without a limit."""
    quarantine: Days | None = 30
    """Days after the ingest for which quarantined records are kept. None: without a limit."""
    models: Days | None = None
    """Days after the end of its cycle for which a version's model is kept. None: without a limit. The three newest versions, and the three
    newest that have served, are always kept, and so is a model that serves, is adopted, pinned or recalled, or belongs to an open cycle."""
    pinned_models: tuple[Positive, ...] = ()
    """Numbers of versions whose models are never deleted."""
    grace: Annotated[float, Field(ge=0)] = 7
    """Days for which files that nothing refers to are kept before `ratchet gc` deletes them; at most one day for files of the lake."""


class QuarantineSettings(Frozen):
    """Settings of the quarantine, where records wait that could not be read or were not admitted."""

    placeholders: tuple[str, ...] = ()
    """Texts that your own tools write in place of content, for example `<removed by gateway>`. A record with a text that is one of them, or
    has one of them inside, is quarantined (`redacted_content`). Those of well-known tools are built in
    (materializer/dialects/screening/placeholders.py)."""
    alarm_share: Share = 0.05
    """Share of quarantined records above which an alarm is raised. 1: no alarm."""
    alarm_window: Seconds = 86_400
    """Seconds of the past over which the share is measured."""
    alarm_min_records: Positive = 20
    """Minimum number of records in the window. With fewer, no alarm is raised."""
    keep_days: Annotated[float, Field(ge=0, le=3650)] = 30
    """Days after which the masked bytes of a quarantined record are deleted. 0: no bytes are kept, only place and reason. Only records that
    consent to the use of their content, and those without a statement where consent is assumed, keep bytes."""
    keep_unreadable: bool = False
    """Whether records whose consent cannot be read keep masked bytes too, for example lines that are no JSON. Ids of users are replaced
    in them only where they are found by their usual keys."""
    max_bytes: Annotated[int, Field(gt=0, le=1 << 24)] = 65_536
    """Maximum number of masked bytes that are kept of a record. Longer ones are cut, and then only a file can be replayed."""
    max_total_bytes: Positive = 536_870_912
    """Maximum number of masked bytes that are kept in total for the line. Records beyond it keep none."""
