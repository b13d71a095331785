"""Selects the implementation of each port from the loop file and the home folder, and builds the line context from them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.contracts.data.datasets import Facts
from ratchet.contracts.ids import line_stream
from ratchet.contracts.jobs.training import Choice, Method
from ratchet.contracts.loop import GateSettings, Loop, TeacherSettings, TrainingSettings
from ratchet.contracts.moment import Moment
from ratchet.contracts.ports import (
    Artifacts,
    Clock,
    Datasets,
    Evaluator,
    Executor,
    Ledger,
    ModelClient,
    Progress,
    Registry,
    Rewards,
    RolloutJudge,
    Server,
    Teacher,
)
from ratchet.contracts.serving import Endpoint
from ratchet.flows.composition.artifacts import open_artifacts
from ratchet.flows.composition.before_training import look_at_job
from ratchet.flows.composition.cluster import open_cluster, refuse_impossible_job
from ratchet.flows.composition.compute import open_compute
from ratchet.flows.composition.cost import estimate_plan_cost, price_of_time
from ratchet.flows.composition.extensions import BUILT_IN_CHECKS, LineExtensions, open_extensions, open_router, open_server, open_sources
from ratchet.flows.composition.late import made
from ratchet.flows.config.home import Home
from ratchet.flows.core.folds.line import fold_line
from ratchet.flows.core.triggers import evaluation_level
from ratchet.flows.engine.context import LineContext, process_holder
from ratchet.flows.ledger.opening import open_ledger_at
from ratchet.runtime.moments import this_moment
from ratchet.runtime.secrets.keyring import KeyFile, ensure_keyring

if TYPE_CHECKING:
    from ratchet.rewards.scorer_set import ScorerSet

MIRROR_REQUESTS = 8
"""Number of mirrored prompts that a model server answers at a time."""
MIRROR_TIMEOUT = 30.0
"""Seconds after which the request of a mirrored prompt has failed. A tick of the rollout waits for it."""


class SystemClock:
    """A clock that uses the machine's time."""

    def now(self) -> datetime:
        """Return the current time in UTC."""
        return datetime.now(UTC)

    def moment(self) -> Moment:
        """Return the present moment on this machine."""
        return this_moment()

    def sleep(self, seconds: float) -> None:
        """Block the thread for `seconds` seconds."""
        time.sleep(seconds)


def open_ledger(home: Home) -> Ledger:
    """Open the installation's ledger. A new database is created at first use."""
    return open_ledger_at(home.ledger_url)


def build_line_context(
    loop: Loop, folder: Path, home: Home, progress: Progress, ledger: Ledger | None = None, late: bool = False
) -> LineContext:
    """Build the line context: all ports of one line, as selected by its loop file. Starts no process.

    `folder` is the folder of the loop file. `ledger` is the ledger of the installation, if the caller has opened it already. With `late`,
    a port is built when it is first used. Raises ConfigError if a named trainer, server or setting is not available; with `late`, the
    first use of the port raises it.
    """
    from ratchet.materializer.lake.places.size import lake_cursor
    from ratchet.trainers.code_digest import code_digest

    name, clock, artifacts = loop.line.name, SystemClock(), open_artifacts(home)
    place = home.lake(name)
    gate = loop.gate.model_copy(update={"level": evaluation_level(loop)})
    rows, rewards = ledger or open_ledger(home), made(lambda: _rewards(loop, home), late)
    opened = made(lambda: open_extensions(loop, folder, home, artifacts, gate), late)
    return LineContext(
        loop=loop,
        folder=folder,
        ledger=rows,
        clock=clock,
        artifacts=artifacts,
        sources=made(lambda: open_sources(loop, folder, home) if late else opened.sources, late),
        datasets=made(lambda: _datasets(loop, folder, home, artifacts, clock, rewards, opened), late, cursor=lambda: lake_cursor(place)),
        rewards=rewards,
        choose=_choose,
        trainers=made(lambda: opened.trainers, late),
        code=code_digest(),
        executor=made(lambda: open_executor(loop, folder, home), late),
        server=made(lambda: _named(open_server(loop, folder, home, artifacts) if late else opened.server, loop, rows), late),
        client=_client,
        mirror_client=_mirror_client,
        evaluator=made(lambda: _evaluator(artifacts, rewards, gate, opened, folder), late),
        checks=made(lambda: opened.checks, late),
        registry=made(lambda: _registry(home), late),
        router=made(lambda: open_router(loop, home) if late else opened.router, late),
        metrics=made(lambda: opened.metrics, late),
        judge=made(lambda: _judge(loop), late),
        scratch=home.scratch,
        progress=progress,
        holder=process_holder(),
        cost=lambda plan: estimate_plan_cost(plan, loop, folder, artifacts, home.scratch),
        fits=lambda spec: refuse_impossible_job(spec, loop, folder, home),
        before_training=lambda spec: look_at_job(spec, artifacts, home.scratch),
        price=lambda seconds: price_of_time(loop, folder, seconds),
        versions=made(lambda: opened.versions, late),
        teacher=_teacher(loop.teacher, late),
    )


def _named(server: Server, loop: Loop, ledger: Ledger) -> Server:
    """Tell a built-in server the names of the line, to which its processes answer, and whether adapters share a process.

    A cycle's stored loop file does not know all names.
    """
    from ratchet.local.server import EmbeddedServer, VllmServer

    def names() -> tuple[str, ...]:
        line = fold_line(loop.line.name, ledger.read(line_stream(loop.line.name)))
        return (line.served_model or loop.line.served_model, *line.former_names)

    if isinstance(server, EmbeddedServer | VllmServer):
        server.names = names
        server.shared = loop.serving.adapters == "shared"
    if loop.serving.kind == "kubernetes":
        from ratchet.k8s.serving.models import ClusterServer

        if isinstance(server, ClusterServer):
            server.names = names
    return server


def _rewards(loop: Loop, home: Home) -> ScorerSet:
    from ratchet.rewards.judge.records import JudgeRecords
    from ratchet.rewards.scorer_set import build_scorer_set

    name = loop.line.name
    found = build_scorer_set(loop.rewards, JudgeRecords(home.judgements, name, home.database(name)))
    if Method.GRPO.value in loop.training.methods:
        found.check_jobs(None if loop.cluster is None else loop.cluster.secrets)
    return found


def _datasets(
    loop: Loop, folder: Path, home: Home, artifacts: Artifacts, clock: Clock, rewards: ScorerSet, opened: LineExtensions
) -> Datasets:
    from ratchet.materializer.datasets import LakeDatasets
    from ratchet.materializer.ingest import IngestKeys

    ensure_keyring(home.user_keys, clock.now())
    name = loop.line.name
    keys = IngestKeys(spans=KeyFile(home.span_keys(name)), users=KeyFile(home.user_keys))
    return LakeDatasets(home.lake(name), loop, folder, rewards, artifacts, clock, keys, opened.dialects, open_compute(loop.compute))


def _teacher(settings: TeacherSettings | None, late: bool) -> Teacher | None:
    def opened(found: TeacherSettings) -> Teacher:
        from ratchet.gates.safety.refusals import is_refusal
        from ratchet.materializer.teacher.client import HttpTeacher

        return HttpTeacher(found, is_refusal)

    return None if settings is None else made(lambda: opened(settings), late)


def _choose(facts: Facts, settings: TrainingSettings, unseen_scorer: bool) -> Choice:
    from ratchet.trainers.choose import choose

    return choose(facts, settings, unseen_scorer)


def _client(endpoint: Endpoint) -> ModelClient:
    from ratchet.gates.model_client import HttpModelClient

    return HttpModelClient(endpoint)


def _mirror_client(endpoint: Endpoint) -> ModelClient:
    from ratchet.gates.model_client import HttpModelClient

    return HttpModelClient(endpoint, MIRROR_REQUESTS, MIRROR_TIMEOUT, timeouts=1)


def _evaluator(artifacts: Artifacts, rewards: Rewards, gate: GateSettings, opened: LineExtensions, folder: Path) -> Evaluator:
    from ratchet.gates.evaluation.evaluator import PairedEvaluator
    from ratchet.rewards.scorer_set import build_scorer_set

    suites = {name: build_scorer_set([suite.reward]) for name, suite in gate.suites.items() if suite.reward is not None}
    return PairedEvaluator(artifacts, rewards, gate, len(opened.checks) == len(BUILT_IN_CHECKS), folder, suites)


def _registry(home: Home) -> Registry:
    from ratchet.gates.registry_process import ProcessRegistry

    return ProcessRegistry(home.mlflow_url, home.root / "mlflow")


def _judge(loop: Loop) -> RolloutJudge:
    from ratchet.gates.rollout_judge import EvidenceJudge

    return EvidenceJudge(loop.rollout)


def open_executor(loop: Loop, folder: Path, home: Home) -> Executor:
    """Open the executor for the line's jobs: this machine, or the cluster named in the loop file.

    Raises ConfigError if the cluster's profile or kubeconfig is missing or invalid.
    """
    name = loop.line.name
    if loop.cluster is None:
        from ratchet.local.executor import LocalExecutor

        return LocalExecutor(home.jobs(name), home.artifacts)
    return open_cluster(loop, loop.cluster, folder, home)
