"""The line context: all ports of one model line, and the lease under which they are used. Contains no decision logic."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.contracts.cycle import Append, Lease, Row
from ratchet.contracts.errors import Leased, Permanent, RatchetError, Retryable
from ratchet.contracts.ids import Digest, line_stream
from ratchet.contracts.model import ModelRef, model_ref
from ratchet.flows.core.folds.cycle import CycleView, fold_cycle
from ratchet.flows.core.folds.line import LineView, fold_line
from ratchet.flows.core.folds.rollout import RolloutView, fold_rollout
from ratchet.runtime.process_identity import is_running, process_identity, same_boot

if TYPE_CHECKING:  # the types of the ports; a command that reads the ledger needs none of them
    from ratchet.contracts.data.datasets import Facts
    from ratchet.contracts.extension import ExtensionVersion
    from ratchet.contracts.jobs.training import BeforeTraining, Choice, Cost, JobSpec, TrainingPlan
    from ratchet.contracts.loop import Loop, TrainingSettings
    from ratchet.contracts.ports import (
        Artifacts,
        Check,
        Clock,
        Datasets,
        Evaluator,
        Executor,
        Ledger,
        Metrics,
        ModelClient,
        Progress,
        Registry,
        Rewards,
        RolloutJudge,
        Router,
        Server,
        Teacher,
        TraceSource,
        Trainer,
    )
    from ratchet.contracts.serving import Endpoint

LEASE_SECONDS = 60.0
"""Lifetime of a lease without renewal, in seconds."""
_POLL = 0.2
"""Seconds between two tries to acquire a lease."""
TURN_SECONDS = 1.5 * LEASE_SECONDS
"""How long a user's command waits for a lease, in seconds. This is longer than the lease of a process that died on another machine."""


@dataclass(frozen=True)
class LineContext:
    """The ports and settings through which the engine works on one line."""

    loop: Loop
    folder: Path
    """Folder of the loop file. Relative paths in the loop file start here."""
    ledger: Ledger
    clock: Clock
    artifacts: Artifacts
    sources: Sequence[TraceSource]
    datasets: Datasets
    rewards: Rewards
    choose: Callable[[Facts, TrainingSettings, bool], Choice]
    trainers: Mapping[str, Trainer]
    code: Digest
    """Digest of the code of contracts, runtime, rewards and trainers. It is part of every plan."""
    executor: Executor
    server: Server
    client: Callable[[Endpoint], ModelClient]
    evaluator: Evaluator
    checks: Sequence[Check]
    registry: Registry
    router: Router
    metrics: Metrics
    judge: RolloutJudge
    scratch: Path
    """Folder for temporary files, which may be deleted."""
    progress: Progress
    holder: str
    """Identity of this process as a lease holder. `process_holder` builds it."""
    read_model: Callable[[Path, Digest, Digest | None], ModelRef] = model_ref
    """Computes the model reference from a folder's files: (folder, digest of the files, digest of the parent model or None)."""
    cost: Callable[[TrainingPlan], Cost | None] | None = None
    """Estimates the cost of one attempt at a plan. None, also as its result: no estimate, and no check against time and budget."""
    fits: Callable[[JobSpec], None] | None = None
    """Raises ConfigError if the machines of the line can never run a job. None: every job fits."""
    before_training: Callable[[JobSpec], BeforeTraining | None] | None = None
    """Counts the rows that a job leaves out, and looks for what can spoil its result. It raises Retryable if it cannot, and ConfigError if
    the model cannot be trained with the recipe. None, also as its result: not known."""
    price: Callable[[float], float | None] | None = None
    """Price of the line's machines for a number of seconds, in the price table's currency. None, also as its result: not known."""
    versions: Mapping[str, tuple[ExtensionVersion, ...]] = field(default_factory=dict)
    """Kind of extension (dialect, check, metrics, trainer) -> code versions, which are recorded with the decisions."""
    mirror_client: Callable[[Endpoint], ModelClient] | None = None
    """Client for mirrored prompts, with few requests at a time, because users wait for the same servers. None: `client`."""
    teacher: Teacher | None = None
    """The model that is asked for missing right answers. None: the loop file names none."""
    new_salt: Callable[[], str] = secrets.token_hex
    """Returns a new random text, for the assignment of sessions during a rollout."""
    heartbeat: bool = True
    """Whether a thread renews the lease during long effects. Off under a virtual clock."""
    file: str = ""
    """Name of the loop file in its folder; empty if it is not known. Ledger rows name it, so that a command can find it by the line."""

    @property
    def line(self) -> str:
        """Name of the model line."""
        return self.loop.line.name

    def line_view(self) -> LineView:
        """Read the line's rows from the ledger and fold them."""
        return fold_line(self.line, self.ledger.read(line_stream(self.line)))

    def cycle_view(self, cycle: str) -> CycleView:
        """Read a cycle's rows and fold them. Raises RatchetError if the ledger has no such cycle."""
        entries = self.ledger.read(cycle)
        if not entries:
            raise RatchetError(f"{cycle} is not in the ledger; `ratchet status` lists the cycles")
        return fold_cycle(entries)

    def rollout_view(self, rollout: str) -> RolloutView | None:
        """Read a rollout's rows and fold them; None if the rollout is not opened yet."""
        entries = self.ledger.read(rollout)
        return fold_rollout(entries) if entries else None


def process_holder() -> str:
    """Return the identity of this process and thread as a lease holder: host, pid, process identity and thread id."""
    return f"{socket.gethostname()}/{os.getpid()}/{process_identity(os.getpid())}/{threading.get_ident()}"


def busy_text(lease: Lease, now: datetime) -> str:
    """Return for what a lease is held, and for how long, for example `the reconciler (12 s)`. Without a purpose, return its holder."""
    process, purpose, since = _parts(lease.holder)
    return f"{purpose} ({max(0, int(now.timestamp()) - since)} s)" if purpose else process


def _parts(holder: str) -> tuple[str, str, int]:
    """Split a lease's holder into the process, its purpose, and the second in which it took the lease; without a purpose, "" and 0."""
    process, _, rest = holder.rpartition("/")
    process, _, purpose = process.rpartition("/")
    return (process, purpose, int(rest)) if " " in purpose and rest.isdecimal() else (holder, "", 0)


def _is_dead(holder: str) -> bool:
    """Whether a holder certainly no longer exists: a process of this host and this boot that has ended.

    A holder from another boot may belong to another host of the same name. Its lease is left to expire.
    """
    ours = process_identity(os.getpid())
    parts = _parts(holder)[0].split("/")
    if len(parts) != 4 or parts[0] != socket.gethostname() or ours is None or not same_boot(parts[2], ours):
        return False
    return not is_running(int(parts[1]), parts[2])


@contextmanager
def leased(context: LineContext, purpose: str, name: str | None = None, wait: float = 0.0) -> Iterator[Lease]:
    """Hold a lease while the block runs, and renew it in the background. The default lease is the one of the line.

    `purpose` is shown to a user who waits for the lease. Raises Retryable if another living process still holds the lease after `wait`
    seconds.
    """
    lease = take(context, name or line_stream(context.line), wait, purpose)
    stop = threading.Event()
    keeper = threading.Thread(target=_keep, args=(context, lease, stop), daemon=True)
    if context.heartbeat:
        keeper.start()
    try:
        yield lease
    finally:
        stop.set()
        if context.heartbeat:
            keeper.join()
        with contextlib.suppress(Retryable):
            context.ledger.release(lease)


def take(context: LineContext, name: str, wait: float = 0.0, purpose: str = "") -> Lease:
    """Acquire a lease, and retry for `wait` seconds. The lease of a dead process of this machine is taken over at once.

    `purpose` contains a space and no slash; empty: only the process is recorded.
    Raises Retryable if another holder still has the lease after that time.
    """
    waited, reported = 0.0, False  # the time is counted, because the clock may be set
    while True:
        try:
            return _take(context, name, purpose)
        except Retryable as error:
            if waited >= wait:
                raise
            if not reported:
                context.progress(f"waiting: {error}", 0, 0)
            reported = True
            context.clock.sleep(_POLL)
            waited += _POLL


def _take(context: LineContext, name: str, purpose: str) -> Lease:
    now = context.clock.now()
    holder = f"{context.holder}/{purpose}/{int(now.timestamp())}" if purpose else context.holder
    lease = context.ledger.acquire(name, holder, LEASE_SECONDS, now)
    current = context.ledger.holder(name) if lease is None else None
    if current is not None and (_parts(current.holder)[0] == context.holder or _is_dead(current.holder)):
        context.ledger.release(current)  # also a lease of this process that it could not release earlier
        lease = context.ledger.acquire(name, holder, LEASE_SECONDS, now)
    if lease is None:
        raise Leased(f"{name} is leased by {_busy(current, now)}; retry after the lease expires")
    return lease


def _busy(lease: Lease | None, now: datetime) -> str:
    if lease is None:
        return "another process"
    process, purpose, _ = _parts(lease.holder)
    return f"{busy_text(lease, now)} of process {process}" if purpose else process


def _keep(context: LineContext, lease: Lease, stop: threading.Event) -> None:
    """Renew a lease until `stop` is set. A lost lease needs no action here, because the ledger rejects the next write."""
    while not stop.wait(LEASE_SECONDS / 3):
        with contextlib.suppress(RatchetError):
            context.ledger.renew(lease, LEASE_SECONDS, context.clock.now())


def append_to_rollout(view: RolloutView, context: LineContext, lease: Lease, row: Row) -> RolloutView:
    """Append a row to a rollout's stream and return the view with it. Raises Permanent if the stream is missing."""
    context.ledger.append([Append(stream=view.id, after=view.seq, rows=(row,))], lease, context.clock.now())
    after = context.rollout_view(view.id)
    if after is None:
        raise Permanent(f"{view.id} is missing from the ledger")
    return after
