"""Contents of the ledger rows: one type per kind of row, and how rows are made from them and read with them.

The results of the steps are in contracts/steps.py. The rows `step_accepted`, `trial_ended`, `chosen` and `answered` have the types
`ResumePoint`, `TrialEnd`, `Chosen` and `Answer`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import AwareDatetime, ConfigDict, Field, PlainSerializer, SerializerFunctionWrapHandler, ValidationError, model_serializer

from ratchet.contracts.cycle import ApprovalKind, Entry, Row
from ratchet.contracts.data.datasets import IngestReport
from ratchet.contracts.data.teaching import TeacherOutcome
from ratchet.contracts.errors import Permanent
from ratchet.contracts.extension import ExtensionVersion
from ratchet.contracts.ids import Digest
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.search import Trial
from ratchet.contracts.jobs.training import Adjustment, Proposal, Usage
from ratchet.contracts.loop import Loop, RolloutSettings
from ratchet.contracts.mirror import Mirrored
from ratchet.contracts.model import Count, Finite, Frozen, Magnitude, ModelRef
from ratchet.contracts.serving import ModelVersion, StepJudgement
from ratchet.contracts.steps import State
from ratchet.contracts.wording import first_problem

_Content = TypeVar("_Content", bound=Frozen)


def content_of(kind: type[_Content], row: Entry) -> _Content:
    """Return the content of a row. Raises Permanent, which names the row and the field, if the row does not fit its type."""
    try:
        return kind.model_validate(row.data)
    except ValidationError as error:
        raise Permanent(
            f"row {row.seq} of {row.stream} ({f'{row.kind} {row.key}'.strip()}) is not a valid {kind.__name__}: {first_problem(error)}; "
            "`ratchet verify` shows whether the ledger was changed"
        ) from error


def row_of(kind: str, content: Frozen, key: str = "") -> Row:
    """Return a row with this content."""
    return Row(kind=kind, key=key, data=content.model_dump(mode="json", by_alias=True))


class RowContent(Frozen):
    """Content of a row. A field that has its default is not written."""

    model_config = ConfigDict(populate_by_name=True)

    @model_serializer(mode="wrap")
    def _written(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        omitted = {field.alias or name for name, field in type(self).model_fields.items() if getattr(self, name) == field.default}
        return {name: value for name, value in dump(self).items() if name not in omitted}


class Reason(RowContent):
    """Why something ended or was recalled."""

    reason: str


class Request(RowContent):
    """A request of an operator."""

    actor: str
    reason: str


# Rows of a cycle and of its requests for approval


class GivenModel(Frozen):
    """A model that was trained elsewhere. A cycle judges and rolls it out instead of training one."""

    model: ModelRef
    folder: str
    """Folder that it was copied from."""
    differs: tuple[str, ...] = ()
    """Which of its files that are no weights are not those of the champion: tokenizer, chat template, generation config."""


class CycleOpened(RowContent):
    """The begin of a cycle."""

    line: str
    number: int
    """Number of the cycle within its line, starting at 1."""
    loop: Loop
    """The content of the loop file, with all defaults."""
    loop_digest: Digest
    folder: str
    """Folder of the loop file."""
    file: str
    """Name of the loop file; empty if there is none."""
    champion: ModelVersion
    """The line's champion."""
    start: ModelVersion
    """The version that training starts from."""
    reason: str
    baseline: ModelVersion | None = None
    """The version that the candidate is compared with, if the champion is recalled."""
    actor: str = ""
    """The operator who requested the cycle; empty if it was due."""
    given: GivenModel | None = None
    """The model that the operator gave as the candidate; None if the cycle trains one."""


class EffectIntended(RowContent):
    """An effect that is about to be performed."""

    adjustment: Adjustment | None = None
    """What a new training attempt changes in the plan's recipe."""


class FailedTry(RowContent):
    """A failed try of an effect."""

    error: str


class JobEnd(RowContent):
    """The end of one incarnation of the training job."""

    attempt: int
    incarnation: int
    outcome: Outcome
    reason: str
    successor: int = 0
    """The incarnation that the executor started by itself as a replacement; 0 if there is none."""
    usage: Usage | None = None
    """Resources that the attempt used so far; None without metering."""
    proposal: Proposal | None = None
    """The change that the failed job proposes for the next attempt."""
    events: Digest | None = None
    """Artifact with the attempt's event log so far; None if it is empty."""


class TrialBegun(RowContent):
    """The begin of a trial of the search."""

    trial: Trial
    variant: str
    """Name of its recipe."""
    plan: Digest
    """Id of its plan."""


class Asked(RowContent):
    """A request for approval."""

    cycle: str
    kind: ApprovalKind
    subject: str
    """Digest of the approved object: the plan, or the candidate with its evaluation report."""
    evidence: Digest
    """Artifact with the evidence, a JSON object that the form shows."""
    expires: Annotated[datetime, PlainSerializer(datetime.isoformat)]


# Rows of a line


class HubSource(Frozen):
    """Where an adopted model was downloaded, and the terms that were accepted for it."""

    repository: str
    revision: str
    """Revision that was asked for."""
    commit: str
    """Commit to which it pointed, and which was downloaded."""
    licence: str
    link: str = ""
    """Where the licence or the terms can be read."""


class Adopted(RowContent):
    """The first model of a line."""

    version: ModelVersion
    actor: str
    folder: str
    """Folder of the loop file."""
    file: str
    """Name of the loop file; empty if there is none."""
    source: HubSource | None = None
    """Where the model came from, if it was adopted by name. `actor` has accepted its licence."""


class ServedAs(RowContent):
    """The model name by which clients call the line from now on. The names before it stay valid until they are ended."""

    name: str
    former: tuple[str, ...] = ()
    """Names before it that no row records, because the line is older than these rows."""


class FileTaken(Request):
    """The decision of an operator that another loop file is the one of the line."""

    folder: str
    """Folder of the loop file."""
    file: str
    """Name of the loop file."""
    former: str = ""
    """Path of the loop file until then; empty if it was not known."""


class CycleNoted(RowContent):
    """The begin of a cycle, as its line records it."""

    traces: int
    """Number of traces in the lake."""
    reason: str
    actor: str = ""
    """The operator who requested the cycle; empty if it was due."""


class CycleEnd(RowContent):
    """The end of a cycle, as its line records it."""

    state: State
    reason: str
    evaluated: bool
    """Whether its candidate was evaluated."""
    plan_again: bool = False
    """Whether the next cycle is due at once."""


class NewChampion(RowContent):
    """The promotion of a candidate."""

    version: ModelVersion
    cycle: str


class RolledBack(RowContent):
    """A rollback that was carried out."""

    to: ModelVersion | None
    """The version that serves again; None if the champion did not change."""
    gone: ModelVersion | None = Field(default=None, alias="from")
    """The champion until then; None if only a rollout was rolled back."""
    actor: str
    reason: str


class QuarantineAlarm(RowContent):
    """The begin or the end of the alarm of the quarantine, with the figures of `QuarantineCounts`."""

    read: int
    quarantined: int
    reasons: dict[str, int]
    text: str
    """The counts for people."""


class GarbageCollected(RowContent):
    """What a garbage collection deleted: place -> number of rows and files, and the number of bytes."""

    rows: dict[str, int]
    files: dict[str, int]
    bytes: int


# Rows of a line's exports


class DatasetExported(RowContent):
    """A training set that was written to files for a trainer elsewhere."""

    actor: str
    source: str
    """cycle/LINE/NUMBER, or `now`."""
    format: str
    rows: dict[str, int]
    """File -> number of its rows."""
    snapshot: Digest
    """Content of the snapshot."""
    files: Digest
    """Digest over names and contents of the files."""
    folder: str
    """Folder that the files were written to."""


class ReviewTaken(RowContent):
    """Answers of reviewers that were taken in."""

    actor: str
    answers: int
    reviewers: int
    questions: Digest
    """JSON list of the prompt_id of all answered questions."""
    expected: Finite
    """Accuracy that the line gains if the model learns all of the answers and nothing else, as estimated when the questions were chosen."""


# Rows of a line's teacher


class TeacherSent(RowContent):
    """A question that is about to be sent to a teacher. Without a `got` row of the same key, it counts with its highest cost."""

    highest: Magnitude
    """Highest cost of one request, in the currency of the loop file."""
    measures: bool = False
    """Whether its right answer is known, so that it measures the agreement."""


class TeacherGot(RowContent):
    """What became of a question that was sent."""

    outcome: TeacherOutcome
    cost: Magnitude
    requests: Count = 1
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    answer: Digest | None = None
    """Artifact with the answer; None without one."""
    detail: str = ""
    """What is wrong, without content."""


# Rows of a rollout


class RolloutOpened(RowContent):
    """The begin of a rollout."""

    cycle: str
    champion: ModelVersion
    """The line's champion."""
    candidate: ModelVersion
    """The version that the rollout introduces."""
    settings: RolloutSettings
    metrics: tuple[ExtensionVersion, ...]
    """Code version of the metrics."""
    salt: str
    """The random text by which sessions are assigned."""


class WeightSet(RowContent):
    """A weight that the rollout has set."""

    index: int
    """Position of the step in `rollout.steps`."""
    weight: float
    """Percentage of the sessions."""


class Judged(WeightSet):
    """The judgement of a step's evidence."""

    judgement: StepJudgement


class Away(RowContent):
    """No server of the candidate can be reached. The row `died` follows when one can again."""

    since: AwareDatetime
    """Last moment at which one was seen to answer, as far as it is known."""


class Died(RowContent):
    """A time in which the process did not run that champion and candidate share, or in which no server of the candidate could be
    reached."""

    since: AwareDatetime
    """Last moment at which the process is known to have run, or a server to have answered."""
    until: AwareDatetime
    """Moment at which the versions answered again, and the step began again. It is `since` if the server ended by itself meanwhile."""


class MirrorBegun(RowContent):
    """A batch of prompts that are about to be asked again."""

    secret: str
    """Name of the key of the hashes (`ratchet.contracts.mirror.MirrorPrompts`)."""
    prompts: tuple[tuple[str, str], ...]
    """(prompt, person), both as hashes."""


class MirrorEnd(RowContent):
    """The result of a batch."""

    mirrored: Mirrored


# Rows of an ingested batch


class IngestBegun(RowContent):
    """A batch that is about to be written to the lake."""

    source: str
    format: str
    sender: str | None
    """Label of the sender; None if it is unknown."""


class IngestEnd(RowContent):
    """The ingest of a batch."""

    report: IngestReport
    dialects: tuple[ExtensionVersion, ...]
    """Code versions of the installed dialects."""
    rules: Digest | None = None
    """Digest of the settings by which its records were read. None in rows of earlier releases."""
