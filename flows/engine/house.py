"""One model line's ports, bundled, and the lease under which they are used. Holds no logic of the loop."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from contracts.cycle import Lease
from contracts.data import Facts
from contracts.errors import RatchetError, Retryable
from contracts.ids import Digest, line_stream
from contracts.loop import Loop, TrainingSettings
from contracts.model import ModelRef, model_ref
from contracts.ports import (
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
    TraceSource,
    Trainer,
)
from contracts.processes import process_identity
from contracts.serving import Endpoint
from contracts.training import Choice, Cost, TrainingPlan
from flows.core.views import CycleView, LineView, RolloutView, fold_cycle, fold_line, fold_rollout

LEASE_SECONDS = 60.0
TURN_SECONDS = 1.5 * LEASE_SECONDS
"""For how long a person's command waits for its turn: longer than a lease outlives a holder that died on another machine."""


@dataclass(frozen=True)
class House:
    """Everything that the engine may touch for one line."""

    loop: Loop
    folder: Path
    """Of the loop file: relative paths in it start here."""
    ledger: Ledger
    clock: Clock
    artifacts: Artifacts
    sources: Sequence[TraceSource]
    datasets: Datasets
    rewards: Rewards
    choose: Callable[[Facts, TrainingSettings, bool], Choice]
    trainers: Mapping[str, Trainer]
    code: Digest
    """Of contracts + rewards + trainers: goes into every plan."""
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
    """For files that may be lost."""
    progress: Progress
    holder: str
    """Who we are, for leases: host, pid and start time."""
    read_model: Callable[[Path, Digest, Digest | None], ModelRef] = model_ref
    """What a folder's bytes say that a model is."""
    cost: Callable[[TrainingPlan], Cost] | None = None
    """What an attempt at a plan would take; none: nobody can tell."""
    heartbeat: bool = True
    """Whether a thread renews the lease during long effects (off under a virtual clock)."""

    @property
    def line(self) -> str:
        return self.loop.line.name

    def line_view(self) -> LineView:
        return fold_line(self.line, self.ledger.read(line_stream(self.line)))

    def cycle_view(self, cycle: str) -> CycleView:
        entries = self.ledger.read(cycle)
        if not entries:
            raise RatchetError(f"there is no {cycle} in the ledger; `ratchet status` lists the cycles")
        return fold_cycle(entries)

    def rollout_view(self, rollout: str) -> RolloutView | None:
        entries = self.ledger.read(rollout)
        return fold_rollout(entries) if entries else None


def process_holder() -> str:
    """This process (and thread) as a lease holder."""
    return f"{socket.gethostname()}/{os.getpid()}/{process_identity(os.getpid())}/{threading.get_ident()}"


def _is_dead(holder: str) -> bool:
    """Whether a holder is certainly gone: a process of this host and this boot that does not exist any more. Of another boot we
    cannot tell a reboot from another host of the same name; its lease runs out by itself."""
    ours = process_identity(os.getpid())
    parts = holder.split("/")
    if len(parts) != 4 or parts[0] != socket.gethostname() or ours is None or _boot(parts[2]) != _boot(ours):
        return False
    return process_identity(int(parts[1])) != parts[2]


def _boot(identity: str) -> str:
    return identity.rpartition("-")[0]


@contextmanager
def leased(house: House, name: str | None = None, wait: float = 0.0) -> Iterator[Lease]:
    """The lease on the line, renewed while the block runs. Retryable while another living process holds it, for over `wait` seconds."""
    lease = take(house, name or line_stream(house.line), wait)
    stop = threading.Event()
    keeper = threading.Thread(target=_keep, args=(house, lease, stop), daemon=True)
    if house.heartbeat:
        keeper.start()
    try:
        yield lease
    finally:
        stop.set()
        if house.heartbeat:
            keeper.join()
        with contextlib.suppress(Retryable):
            house.ledger.release(lease)


def take(house: House, name: str, wait: float = 0.0) -> Lease:
    """Acquires a lease, at once where its holder is a dead process of this machine; tries again for `wait` seconds."""
    until, told = house.clock.now() + timedelta(seconds=wait), False
    while True:
        try:
            return _take(house, name)
        except Retryable as error:
            if house.clock.now() >= until:
                raise
            if not told:
                house.progress(f"waits: {error}", 0, 0)
            told = True
            house.clock.sleep(0.2)


def _take(house: House, name: str) -> Lease:
    lease = house.ledger.acquire(name, house.holder, LEASE_SECONDS, house.clock.now())
    current = house.ledger.holder(name) if lease is None else None
    if current is not None and _is_dead(current.holder):
        house.ledger.release(current)
        lease = house.ledger.acquire(name, house.holder, LEASE_SECONDS, house.clock.now())
    if lease is None:
        who = current.holder if current else "another process"
        raise Retryable(f"{name} is being worked on by {who}; it goes on there, or here when its lease ends")
    return lease


def _keep(house: House, lease: Lease, stop: threading.Event) -> None:
    """A lost lease needs no action here: the ledger refuses the next write."""
    while not stop.wait(LEASE_SECONDS / 3):
        with contextlib.suppress(RatchetError):
            house.ledger.renew(lease, LEASE_SECONDS, house.clock.now())
