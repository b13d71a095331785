"""Protocol between the service and a job: environment variables, and names of the files that a job and its executor exchange.

Trainer backends, executors, the processes of a pod, the supervisor and the trainer take all these names from here. The exit codes are in
`contracts/jobs/exit_codes.py`, and the types of the files' contents in `contracts/jobs/training.py`. `runtime/jobs/run_folder.py` reads and
writes run folders. This module loads only the standard library, so that the process that launches a job starts fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from ratchet.contracts.errors import ConfigError

if TYPE_CHECKING:
    from ratchet.contracts.jobs.cluster import BucketSettings
    from ratchet.contracts.jobs.training import Adjustment, Attempt

T = TypeVar("T")


# Environment variables


class Scope(StrEnum):
    """Part of a run for which a variable has one value, and the component that sets it."""

    ATTEMPT = "attempt"
    """The trainer backend sets these variables in the `JobSpec`. All nodes and incarnations of an attempt get the same values."""
    PROCESS = "process"
    """The executor, process 1 of a pod, or the supervisor sets these variables for the process that it starts."""
    POD = "pod"
    """The manifest of a gang, or Volcano, sets these variables for the gang's pods."""
    MACHINE = "machine"
    """The operator or the container image sets these variables."""


class TrainerBackend(StrEnum):
    """Library that trains, as the value of BACKEND."""

    TRL = "trl"
    NEMO_RL = "nemo-rl"


class PodTask(StrEnum):
    """Volcano task of a pod, as the value of TASK. Only a gang on Ray has a head."""

    HEAD = "head"
    WORKER = "worker"


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One environment variable: its name, its scope, and the conversion between its text and a value of type `T`."""

    name: str
    scope: Scope
    parse: Callable[[str], T]
    """Converts the text to the value. Raises ValueError if the text is not valid."""
    default: str | None = None
    """Text that applies if the variable is missing or empty. None: there is no default."""
    text: Callable[[T], str] = str
    """Converts a value to the text."""

    def get(self, environment: Mapping[str, str]) -> T:
        """Return the value in `environment`. Raises ConfigError if the variable is not valid, or missing without a default."""
        found = environment.get(self.name) or self.default
        if found is None:
            raise ConfigError(f"the environment variable {self.name} is not set; start jobs through an executor")
        try:
            return self.parse(found)
        except ValueError as error:
            raise ConfigError(f"the environment variable {self.name} has the invalid value {found[:100]!r}; correct it") from error

    def find(self, environment: Mapping[str, str]) -> T | None:
        """Return the value, or None if the variable is missing and has no default. Raises ConfigError if it is not valid."""
        return self.get(environment) if environment.get(self.name) or self.default else None

    def to_env(self, value: T) -> dict[str, str]:
        """Return the variable with this value, as a part of an environment."""
        return {self.name: self.text(value)}


def _adjustment(text: str) -> Adjustment:
    from ratchet.contracts.jobs.training import Adjustment

    return Adjustment.model_validate_json(text)


def _bucket(text: str) -> BucketSettings:
    from ratchet.contracts.jobs.cluster import BucketSettings

    return BucketSettings.model_validate_json(text)


ATTEMPT = Variable("RATCHET_ATTEMPT", Scope.ATTEMPT, int)
"""Number of the attempt, from 1."""
TIMEOUT = Variable("RATCHET_TIMEOUT", Scope.ATTEMPT, float, "inf", text=lambda seconds: repr(float(seconds)))
"""Maximum duration of the attempt in seconds, over all its incarnations."""
GRACE = Variable("RATCHET_GRACE", Scope.ATTEMPT, float, "30")
"""Seconds from SIGTERM to SIGKILL. `k8s/pod/staging.py` replaces it by a part of the pod's grace period."""
NODES = Variable("RATCHET_NODES", Scope.ATTEMPT, int, "1")
"""Number of nodes that train together."""
GPUS = Variable("RATCHET_GPUS", Scope.ATTEMPT, int, "0")
"""Number of GPUs per node. 0: train on the CPU."""
PROCESSES = Variable("RATCHET_PROCESSES", Scope.ATTEMPT, int, "0")
"""Number of training processes per node. 0: the trainer starts its own processes."""
BACKEND = Variable("RATCHET_BACKEND", Scope.ATTEMPT, TrainerBackend, TrainerBackend.TRL)
"""Library that trains: `trl` or `nemo-rl`. It selects the trainer module and the container image."""
TRAINER = Variable("RATCHET_TRAINER", Scope.ATTEMPT, str)
"""Module of a trainer of another package, which the supervisor runs with `python -m`. Not set: the trainer of BACKEND."""
ADJUSTMENT = Variable("RATCHET_ADJUSTMENT", Scope.ATTEMPT, _adjustment, "{}", text=lambda value: value.model_dump_json())
"""Adjustment of the recipe for this attempt: the fields of `Adjustment` as JSON."""

INCARNATION = Variable("RATCHET_INCARNATION", Scope.PROCESS, int)
"""Number of the incarnation within the attempt, from 1."""
NODE = Variable("RATCHET_NODE", Scope.PROCESS, int, "0")
"""Number of this node, from 0."""
ARTIFACTS = Variable("RATCHET_ARTIFACTS", Scope.PROCESS, Path)
"""Drop folder of the job, to which it publishes its model in the layout of the artifact store. The service verifies the model and copies
it. On a cluster, the gang's manifest sets it; with a bucket, it is a folder on the pod's own disk."""
APART = Variable("RATCHET_APART", Scope.PROCESS, lambda text: bool(int(text)), "0", text=lambda value: str(int(value)))
"""`1`: the nodes have no shared file system."""
LOCK_FD = Variable("RATCHET_LOCK_FD", Scope.PROCESS, int)
"""File descriptor of the attempt's lock, which the supervisor and the trainer inherit. Only on one machine."""
PARENT = Variable("RATCHET_PARENT", Scope.PROCESS, int)
"""Process id of the parent. A training process ends when its parent ends."""

TASK = Variable("RATCHET_TASK", Scope.POD, PodTask)
"""Task of the pod in the gang: `head` or `worker`."""
TASK_INDEX = Variable("VC_TASK_INDEX", Scope.POD, int)
"""Number of the pod within its task, from 0. Volcano sets it."""
FIRST_INCARNATION = Variable("RATCHET_FIRST_INCARNATION", Scope.POD, int)
"""Incarnation with which the gang started. The number of restarts is added to it."""
RESTARTS = Variable("RATCHET_RESTARTS", Scope.POD, int, "0")
"""Number of restarts of the gang, which Volcano writes to an annotation of the pod."""
MASTER_ADDRESS = Variable("MASTER_ADDR", Scope.POD, str)
"""Host name of the first node, where torchrun's rendezvous or Ray's head listens."""
MASTER_PORT = Variable("MASTER_PORT", Scope.POD, int)
"""TCP port of torchrun's rendezvous or of Ray's head on the first node."""
LIBRARY_PATH = Variable("RATCHET_LIBRARY_PATH", Scope.POD, str)
"""Folders, separated by `:`, that process 1 of a pod puts in front of LD_LIBRARY_PATH."""
ENVIRONMENT_SCRIPT = Variable("RATCHET_ENVIRONMENT_SCRIPT", Scope.POD, str)
"""Shell script from which process 1 of a pod takes variables of NCCL."""
BUCKET = Variable("RATCHET_BUCKET", Scope.POD, _bucket, text=lambda value: value.model_dump_json(exclude_none=True))
"""Section `cluster.volume.bucket` of the loop file as JSON. This and the variables below are set only with a bucket."""
MOUNT = Variable("RATCHET_MOUNT", Scope.POD, Path)
"""Path of the volume in the pod. Keys in the bucket are relative to it."""
JOB = Variable("RATCHET_JOB", Scope.POD, str)
"""Name of the job, under which the bucket holds its record."""
SPEC = Variable("RATCHET_SPEC", Scope.POD, str)
"""Digest of the job's record. The pod rejects a record with another digest."""
POD_GRACE = Variable("RATCHET_POD_GRACE", Scope.POD, float)
"""Grace period of the pod in seconds. The job gets a part of it; the rest is for uploads."""

NEMO_RL = Variable("RATCHET_NEMO_RL", Scope.MACHINE, Path, "/opt/nemo-rl")
"""Folder of the NeMo RL release in the job's image."""

SUPERVISOR = ("{python}", "-m", "ratchet.trainers.job.supervisor")
"""Command line of the supervisor, for `JobSpec.command`."""


def attempt_environment(attempt: Attempt, grace_seconds: int) -> dict[str, str]:
    """Return the variables that every trainer backend sets for an attempt. The supervisor enforces the limits in them."""
    limits = ATTEMPT.to_env(attempt.number) | TIMEOUT.to_env(attempt.timeout) | GRACE.to_env(grace_seconds)
    return limits | NODES.to_env(attempt.nodes) | GPUS.to_env(attempt.gpus) | ADJUSTMENT.to_env(attempt.adjustment)


RESERVED = ("RATCHET_", "VC_", "MASTER_")
"""Prefixes of the variables that Ratchet and Volcano set in a pod. Secrets must not use them."""


# Files. The functions also accept a pattern instead of a number or a name, for listings.


JOB_RECORDS = "jobs"
"""Folder of the jobs' records."""


def job_record(name: str) -> str:
    """Return the path of a job's record: its `JobSpec`, from which its run folder is found."""
    return f"{JOB_RECORDS}/{name}.json"


def incarnation_record(name: str) -> str:
    """Return the path of the record of a job's highest submitted incarnation, on one machine."""
    return f"jobs/{name}.incarnation"


def plan_folder(plan: str) -> str:
    """Return the path of the folder with the run folders of a plan's attempts. It is named after the start of the plan's digest."""
    return plan[:16]


def attempt_folder(attempt: int | str) -> str:
    """Return the name of an attempt's run folder, the working directory of the job."""
    return f"a{attempt}"


class RunFile(StrEnum):
    """File or folder in the run folder of an attempt."""

    JOB = "job.json"
    """Name of the job that owns the run folder."""
    PLAN = "plan.json"
    """The `TrainingPlan`."""
    MODEL = "model"
    """Folder of the start model."""
    PAIRS = "pairs.parquet"
    """Pairs, for DPO."""
    DEMONSTRATIONS = "demonstrations.parquet"
    """Demonstrations, for SFT, and for DPO with rehearsal."""
    PROMPTS = "prompts.parquet"
    """Prompts, for GRPO."""
    DEVELOPMENT = "development.parquet"
    """Development prompts, for `steps = "auto"`."""
    CROSS_VALIDATION = "cross_validation.parquet"
    """Prompts that are trained on, for `steps = "auto"` with too few development prompts."""
    RESUME = "resume.json"
    """The `ResumePoint` from which the next incarnation resumes. Without it, the incarnation begins at the start model."""
    CACHE = "cache"
    """Folder for the cache of the trainer's libraries (`HF_HOME`)."""
    DROP = "drop"
    """Drop folder, with the content and the names that the job offers to the service. It is deleted after a success."""
    LOCK = "lock"
    """Lock of the attempt: at most one process per attempt, on one machine."""


def incarnation_folder(incarnation: int | str) -> str:
    """Return the name of an incarnation's folder. A job writes its results only to the folder of its incarnation."""
    return f"i{incarnation}"


class IncarnationFile(StrEnum):
    """File or folder in the folder of an incarnation."""

    SUBMITTED = "submitted.json"
    """Time of the submission, on one machine."""
    PROCESS = "process.json"
    """Identity of the job's main process, on one machine."""
    CANCEL = "cancel.json"
    """When a job was cancelled, and the seconds after which it is killed, on one machine."""
    START = "start.json"
    """Resume point of all pods of this incarnation; only in a bucket."""
    EVENTS = "events.jsonl"
    """Event log: one `JobEvent` per line."""
    WORK = "work"
    """Folder for temporary files of the trainer."""
    MODEL = "model"
    """Folder of the trained model. It is deleted here after it is published as an artifact."""
    ADAPTER = "adapter"
    """Folder of the trained adapter, if one was trained, as for `MODEL`."""
    RESULT = "result.json"
    """Result of the trainer: outcome, reason, step, metrics, optional proposal."""
    ENDED = "ended.json"
    """Result of the incarnation: outcome, reason, optional proposal. It is written last."""
    RESERVE = "reserve"
    """Room on the disk for a result, if the disk becomes full."""
    OUTPUT = "output.log"
    """Output of the supervisor, on one machine."""


def step_folder(step: int | str) -> str:
    """Return the name of the folder of the checkpoint after a step. Its `manifest.json` is written last."""
    return f"step_{step}"


def step_of(folder: str) -> int:
    """Return the step in a name of `step_folder`. Raises ValueError for another name."""
    return int(folder.removeprefix(step_folder("")))


def beat_file(node: int | str) -> str:
    """Return the name of the heartbeat file of a gang's pod. Its content changes with every heartbeat."""
    return f"beat-{node}"


BEAT_SECONDS = 5.0
"""Seconds between two heartbeats of a gang's pod."""
SILENT_SECONDS = 4 * BEAT_SECONDS
"""Seconds without a heartbeat after which a pod counts as silent."""


def result_file(node: int | str) -> str:
    """Return the name of the result of a node's trainer, if the nodes share no file system. Node 0 uses `result.json`."""
    return f"result-{node}.json" if node else str(IncarnationFile.RESULT)


def trainer_log(node: int | str) -> str:
    """Return the name of the log with the output of a node's trainer. Node 0 uses `trainer.log`."""
    return f"trainer{node or ''}.log"


RAY_PORTS = {
    "node-manager-port": 9911,
    "object-manager-port": 9912,
    "runtime-env-agent-port": 9913,
    "dashboard-agent-grpc-port": 9914,
    "dashboard-agent-listen-port": 9915,
    "metrics-export-port": 9916,
    "min-worker-port": 10002,
    "max-worker-port": 11000,
}
"""Options of `ray start` with the ports of Ray on every node. By default, Ray takes any free ones, which vLLM (from 20001) and the
release's process groups (25000 to 28000) may need later. All are below the ephemeral ports, from 32768, which outgoing connections take."""
