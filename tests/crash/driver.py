"""A process that runs one whole cycle and can be killed at any boundary: before or after each ledger append and each external effect.

Engine, ledger (SQLite), artifacts and executor are real. The other ports store their state in files, so that it outlives the process as
the state of real external systems does.

    python -m tests.crash.driver live ROOT              one run; RATCHET_KILL_AT=n: SIGKILL at its n-th boundary (from 1),
                                                        RATCHET_STOP_AT=n: SIGSTOP there, RATCHET_RUSH: random delay at each
    python -m tests.crash.driver sweep ROOT FIRST STEP  for n = FIRST, FIRST+STEP, ...: one run killed at n, then one to the end
    python -m tests.crash.driver stumble ROOT EVERY     runs, each killed at its EVERY-th boundary, until one reaches the end

`sweep` and `stumble` fork their runs, so that each is a separate process without repeated imports. Results are JSON lines on stdout.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ratchet.contracts.cycle import Answer, Identity
from ratchet.contracts.data.datasets import Facts, RawBatch
from ratchet.contracts.errors import Conflict, Rejected, Retryable
from ratchet.contracts.fakes import FakeCheck, FakeClient, FakeDatasets, FakeEvaluator, FakeJudge, FakeRewards, FakeSource, FakeWorld
from ratchet.contracts.ids import canonical, digest, job_name
from ratchet.contracts.jobs.training import Attempt, Choice, JobSpec, Method, TrainingPlan
from ratchet.contracts.loop import Loop, TrainingSettings
from ratchet.contracts.moment import Moment
from ratchet.contracts.serving import Arm, Capabilities, Endpoint, Evidence, ModelVersion, Route
from ratchet.flows.core.decide import End
from ratchet.flows.core.run_comparison import project
from ratchet.flows.engine.context import LineContext, process_holder
from ratchet.flows.engine.line import adopt, answer, approvals, open_cycle
from ratchet.flows.engine.reconcile import reconcile
from ratchet.flows.engine.work import turn
from ratchet.flows.ledger.sql import SqlLedger
from ratchet.local.executor import LocalExecutor
from ratchet.runtime.artifacts import FolderArtifacts, write_atomic
from tests.builders import make_facts
from tests.warm import Forked

LINE = "crash"
FACTS = make_facts()
LOOP = Loop.model_validate(
    {
        "line": {"name": LINE, "served_model": LINE},
        "sources": [{"name": "in", "kind": "receiver"}],
        "rewards": [{"name": "exact_match"}],
        "approvals": {"training": {"mode": "person"}, "rollout": {"mode": "person"}},
        "rollout": {"steps": [5, 25, 100]},
    }
)
SEARCH = {"search": {"budget": 1000}, "dpo": {"steps": "auto"}}
"""Training settings of a line whose cycle searches over three recipes."""
MARKERS = ("bad_canary", "search")
"""Files in a run's folder that change what happens in it."""


def boundaries() -> Callable[[str], None]:
    """Return the function to call at each boundary; it kills, stops or delays the process as the environment variables say."""
    kill, stop, rush = (int(os.environ.get(f"RATCHET_{name}", "0")) for name in ("KILL_AT", "STOP_AT", "RUSH"))
    passed = 0

    def boundary(_where: str) -> None:
        nonlocal passed
        passed += 1
        if passed == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if passed == stop:
            os.kill(os.getpid(), signal.SIGSTOP)
        if rush:
            time.sleep(random.random() * 0.02)

    return boundary


class FileClock:
    """A clock that reads the time from a file and stands still between writes. Sleeping is real, but 20 ms at most."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def now(self) -> datetime:
        """Return the time in the file."""
        return datetime.fromisoformat(self.path.read_text())

    def moment(self) -> Moment:
        """Return the same time as a moment."""
        return Moment(self.now().timestamp())

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, but 20 ms at most."""
        time.sleep(min(seconds, 0.02))


class Outside(FakeWorld):
    """The external systems, stored in a folder: real artifacts, and a log of each effect that really took place."""

    def __init__(self, root: Path, boundary: Callable[[str], None]) -> None:
        super().__init__(faults=boundary)
        self.root = root
        self.artifacts = FolderArtifacts(root / "artifacts")  # type: ignore[assignment]
        self.effects = self  # type: ignore[assignment]

    def __getitem__(self, name: str) -> int:
        return 0

    def __setitem__(self, name: str, _count: int) -> None:
        self.happened(name)

    def happened(self, name: str) -> None:
        """Append the effect to the log."""
        with (self.root / "effects.log").open("a") as log:
            log.write(name + "\n")

    def state(self, name: str) -> Path:
        """Return the file that stores the state with this name."""
        return self.root / "outside" / digest(name)


class KilledLedger(SqlLedger):
    """A SQLite ledger with a boundary before and after each append."""

    def __init__(self, url: str, boundary: Callable[[str], None]) -> None:
        super().__init__(url)
        self.boundary = boundary

    def append(self, appends: Any, lease: Any, at: datetime) -> Any:
        """Append the rows between two boundaries."""
        self.boundary("before append")
        written = super().append(appends, lease, at)
        self.boundary("after append")
        return written


class KilledExecutor(LocalExecutor):
    """A local executor with a boundary before and after each submission, and around the first reconciliation of each job."""

    def __init__(self, root: Path, artifacts: Path, boundary: Callable[[str], None]) -> None:
        super().__init__(root, artifacts)
        self.boundary = boundary
        self.reconciled: set[str] = set()

    def _spawn(self, *given: Any) -> None:
        """Start the job as a process that is forked from this one, so that it needs no imports."""
        with patch.object(subprocess, "Popen", partial(Forked, fresh=False)):
            super()._spawn(*given)

    def reconcile(self, name: str) -> None:
        """Reconcile the job, the first time between two boundaries. Later calls depend on the duration of the job."""
        first = name not in self.reconciled
        self.reconciled.add(name)
        if first:
            self.boundary("before reconcile")
        super().reconcile(name)
        if first:
            self.boundary("after reconcile")

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        """Submit the job between two boundaries."""
        self.boundary("before submit")
        super().submit(spec, incarnation)
        self.boundary("after submit")


class QuickTrainer:
    """A trainer whose jobs run tests/crash/job.py, which ends in a fraction of a second."""

    method = "dpo"

    def recipe(self, changes: Mapping[str, Any], facts: Facts | None = None) -> dict[str, Any]:
        """Return a recipe of two steps with the changes applied."""
        return {"steps": 2, **changes}

    def job(self, plan: TrainingPlan, attempt: Attempt) -> JobSpec:
        """Return the specification of the test job."""
        return JobSpec(
            name=job_name(plan.id, attempt.number, digest("quick")),
            plan=plan.id,
            attempt=attempt.number,
            command=("{python}", str(Path(__file__).with_name("job.py")), "{run}"),
            environment={"RATCHET_ATTEMPT": str(attempt.number)},
            inputs={"start": plan.start.files},
            plan_json=canonical(plan).decode(),
            grace_seconds=5,
        )


class FileServer:
    """Model servers that are files in a folder, so that they outlive the process."""

    capabilities = Capabilities(sampling=True, seed=True, logprobs=False)

    def __init__(self, outside: Outside) -> None:
        self.outside = outside
        self.folder = outside.root / "servers"
        self.folder.mkdir(exist_ok=True)

    def ensure(self, version: ModelVersion) -> Endpoint:
        """Create the server's file unless it exists, and return its endpoint."""
        endpoint = Endpoint(tag=version.tag, url=f"http://{version.tag}", model=version.tag)
        if not (self.folder / version.tag).exists():
            self.outside.faults("before serve")
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.folder / version.tag, os.O_CREAT | os.O_EXCL))
                self.outside.happened(f"serve {version.tag}")
            self.outside.faults("after serve")
        return endpoint

    def running(self) -> list[Endpoint]:
        """Return the endpoints of all servers in the folder."""
        return [Endpoint(tag=p.name, url=f"http://{p.name}", model=p.name) for p in self.folder.iterdir()]

    def stop(self, tag: str) -> None:
        """Delete the server's file and log the effect."""
        self.outside.happened(f"stop {tag}")
        (self.folder / tag).unlink(missing_ok=True)


class FileRouter:
    """A router that stores the route in a file and logs every change of weights."""

    attribution = True

    def __init__(self, outside: Outside) -> None:
        self.outside = outside
        self.path = outside.root / "route.json"

    def set(self, route: Route) -> None:
        """Write the route between two boundaries; logs the effect if the backends change."""
        self.outside.faults("before route")
        before = self.read(route.line)
        if before is None or before.backends != route.backends:
            self.outside.happened("route " + " ".join(f"{b.tag}={b.weight:g}" for b in route.backends))
        write_atomic(self.path, canonical(route))
        self.outside.faults("after route")

    def read(self, line: str) -> Route | None:
        """Return the stored route, or None before the first one."""
        return Route.model_validate_json(self.path.read_bytes()) if self.path.exists() else None

    def forwarded(self, line: str, since: datetime, until: datetime) -> Mapping[str, int]:
        """Return no requests: no time passes, so no step becomes old enough to compare them with the traces."""
        return {}

    def url(self) -> str:
        """Return a fixed URL; nothing listens there."""
        return "http://router"


class FileRegistry:
    """A registry that stores versions and aliases in a folder."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside
        self.folder = outside.root / "registry"
        self.folder.mkdir(exist_ok=True)

    def register(
        self, version: ModelVersion, folder: Path, tags: Mapping[str, str], metrics: Mapping[str, float], steps: Sequence[object] = ()
    ) -> str:
        """Register the version between two boundaries, unless it is already registered."""
        assert (folder / "model.safetensors").exists()
        if not (self.folder / version.tag).exists():
            self.outside.faults("before register")
            self.outside.happened(f"register {version.tag}")
            write_atomic(self.folder / version.tag, canonical(dict(tags)))
            self.outside.faults("after register")
        return f"file:{version.tag}"

    def alias(self, line: str, alias: str, tag: str) -> None:
        """Set the alias between two boundaries."""
        self.outside.faults("before alias")
        write_atomic(self.folder / f"alias-{alias}", tag.encode())
        self.outside.faults("after alias")

    def describe(self, line: str, tag: str, card: str) -> None:
        """Store the model card."""
        write_atomic(self.folder / f"card-{tag}", card.encode())

    def unalias(self, line: str, alias: str) -> None:
        """Remove the alias between two boundaries."""
        self.outside.faults("before unalias")
        (self.folder / f"alias-{alias}").unlink(missing_ok=True)
        self.outside.faults("after unalias")

    def aliases(self, line: str) -> dict[str, str]:
        """Return all aliases and their tags."""
        return {path.name.removeprefix("alias-"): path.read_text() for path in self.folder.glob("alias-*")}


class SteadyMetrics:
    """Metrics that report the same healthy traffic at every query, because the clock stands still."""

    def evidence(self, champion: str, candidate: str, since: datetime, until: datetime) -> Evidence:
        """Return the same evidence for both versions: 50 requests and no error."""
        figures = {"requests": 50, "errors": 0, "refused": 0, "sessions": 50, "latency_p50_ms": 1.0, "latency_p95_ms": 2.0, "rated": ()}
        arms = [Arm(tag=tag, **figures) for tag in (champion, candidate)]
        return Evidence(since=since, until=until, champion=arms[0], candidate=arms[1])


def prepare(root: Path) -> None:
    """Create the external state in `root`: a clock that stands at noon, a base model, and an empty effect log."""
    (root / "base").mkdir(parents=True)
    (root / "outside").mkdir()
    (root / "base" / "config.json").write_text("{}")
    (root / "base" / "model.safetensors").write_bytes(b"base weights")
    (root / "clock").write_text("2026-01-01T12:00:00+00:00")
    (root / "effects.log").touch()


def build(root: Path, bad_canary: bool = False, search: bool = False) -> LineContext:
    """Return the line context of the only line; all persistent state is below `root`."""
    boundary = boundaries()
    outside = Outside(root, boundary)
    batch = RawBatch("in", "jsonl", digest("batch"), "here", lambda: BytesIO(b"{}"))
    return LineContext(
        loop=LOOP.model_copy(update={"training": TrainingSettings.model_validate(SEARCH)}) if search else LOOP,
        folder=Path("/loops"),
        ledger=KilledLedger(f"sqlite:///{root / 'ledger.db'}", boundary),
        clock=FileClock(root / "clock"),
        artifacts=FolderArtifacts(root / "artifacts"),
        sources=(FakeSource("in", [batch]),),
        datasets=FakeDatasets(outside, FACTS, 40 if search else 0),
        rewards=FakeRewards(),
        choose=lambda facts, _settings, _unseen: Choice(method=Method.DPO, reason="always", rules=(), facts=facts),
        trainers={"dpo": QuickTrainer()},
        code=digest("code"),
        executor=KilledExecutor(root / "jobs", root / "artifacts", boundary),
        server=FileServer(outside),
        client=lambda _endpoint: FakeClient(),
        evaluator=FakeEvaluator(outside, 0.2),
        checks=(FakeCheck(),),
        registry=FileRegistry(outside),
        router=FileRouter(outside),
        metrics=SteadyMetrics(),
        judge=FakeJudge(roll_back_when_largest=bad_canary),
        scratch=root / "scratch",
        progress=lambda _what, _done, _total: None,
        holder=process_holder(),
        new_salt=lambda: "salt",  # equal runs write equal rows
    )


def live(root: Path) -> None:
    """Adopt the base model, open the cycle, and work until it has ended and the derived copies are up to date.

    A later call continues where an earlier one was killed. With RATCHET_STOP_AT, a loss of the lease is raised instead of retried.
    """
    context = build(root, **{marker: (root / marker).exists() for marker in MARKERS})
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        try:
            if _work(context, root):
                return
        except Conflict:
            if "RATCHET_STOP_AT" in os.environ:
                raise
        except Retryable as error:
            if "RATCHET_STOP_AT" in os.environ and "passed to another" in str(error):
                raise
            time.sleep(0.01)
    raise SystemExit("the cycle has not ended after 60 s")


def _work(context: LineContext, root: Path) -> bool:
    line = context.line_view()
    if line.champion is None:
        adopt(context, root / "base", "ada")
        return False
    if line.cycles == 0:
        with contextlib.suppress(Rejected):
            open_cycle(context, "test")
        return False
    cycle = context.cycle_view(f"cycle/{LINE}/0001")
    if cycle.ended:
        return reconcile(context) == []
    for request in approvals(context.ledger, LINE):
        if request.awaiting:
            yes = Answer(approve=True, actor="ada", identity=Identity.CLAIMED, via="cli")
            answer(context.ledger, request, yes, context.clock.now())
    if not isinstance(turn(context, cycle), End):
        context.clock.sleep(0.02)
    return False


def told(root: Path) -> dict[str, Any]:
    """Return the observable result of a finished run: the projections of all streams, effects, route, aliases and job starts.

    `ends` says in words how each job ended, for the message of a test that fails.
    """
    ledger = SqlLedger(f"sqlite:///{root / 'ledger.db'}")
    streams = ledger.streams("")
    rows = [row for stream in streams for row in ledger.read(stream) if row.kind == "job_ended"]
    return {
        "ends": [f"{row.key} {row.data['outcome']}: {row.data['reason']}" for row in rows],
        "projection": [row for stream in streams for row in project(ledger.read(stream))],
        "effects": (root / "effects.log").read_text().split("\n")[:-1],
        "route": json.loads((root / "route.json").read_bytes())["backends"],
        "aliases": {path.name: path.read_text() for path in sorted((root / "registry").glob("alias-*"))},
        "starts": [path.read_text() for path in sorted(root.glob("jobs/*/a*/starts"))],
    }


def forked(root: Path, kill_at: int) -> bool:
    """Run `live` in a forked process and return whether it was killed; `kill_at` 0 never kills. Exits if the run fails."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.environ["RATCHET_KILL_AT"] = str(kill_at)
            live(root)
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"the run in {root} with RATCHET_KILL_AT={kill_at} failed with wait status {status}; see stderr")
    return False


def sweep(root: Path, first: int, step: int) -> None:
    """For every `step`-th boundary from `first`: kill one run there, let a second one finish, and print its result."""
    n = first
    while True:
        home = root / f"n{n}"
        prepare(home)
        for marker in MARKERS:
            if (root / marker).exists():
                (home / marker).touch()
        if not forked(home, n):
            return
        assert not forked(home, 0)
        print(json.dumps({"n": n, **told(home)}), flush=True)
        n += step


def stumble(root: Path, every: int) -> None:
    """Kill each run at its `every`-th boundary until one reaches the end before that; print the result of the last run."""
    prepare(root)
    lives = 1
    while forked(root, every):
        lives += 1
        if lives > 200:
            raise SystemExit(f"the cycle has not ended after {lives} runs of {every} boundaries each")
    print(json.dumps({"n": lives, **told(root)}), flush=True)


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    if what == "live":
        live(where)
    elif what == "sweep":
        sweep(where, int(sys.argv[3]), int(sys.argv[4]))
    else:
        stumble(where, int(sys.argv[3]))
