"""Selects the implementation of each port from the loop file and the home folder, and builds the line context from them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from ratchet.contracts.loop import Loop
from ratchet.contracts.ports import Artifacts, Executor, Ledger, Progress
from ratchet.flows.composition.cluster import open_cluster
from ratchet.flows.composition.cost import estimate_plan_cost, price_of_time
from ratchet.flows.composition.extensions import BUILT_IN_CHECKS, open_extensions
from ratchet.flows.config.home import Home
from ratchet.flows.core.triggers import evaluation_level
from ratchet.flows.engine.context import LineContext, process_holder
from ratchet.flows.ledger.opening import open_ledger_at
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.secrets.keyring import KeyFile, ensure_keyring

MIRROR_REQUESTS = 8
"""Number of mirrored prompts that a model server answers at a time."""
MIRROR_TIMEOUT = 30.0
"""Seconds after which the request of a mirrored prompt has failed. A tick of the rollout waits for it."""


class SystemClock:
    """A clock that uses the machine's time."""

    def now(self) -> datetime:
        """Return the current time in UTC."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """Block the thread for `seconds` seconds."""
        time.sleep(seconds)


def open_ledger(home: Home) -> Ledger:
    """Open the installation's ledger. A new database is created at first use."""
    return open_ledger_at(home.ledger_url)


def open_artifacts(home: Home) -> Artifacts:
    """Open the installation's artifact store."""
    return FolderArtifacts(home.artifacts)


def build_line_context(loop: Loop, folder: Path, home: Home, progress: Progress, ledger: Ledger | None = None) -> LineContext:
    """Build the line context: all ports of one line, as selected by its loop file. Starts no process.

    `folder` is the folder of the loop file. `ledger` is the ledger of the installation, if the caller has opened it already. Raises
    ConfigError if a named trainer, server or setting is not available.
    """
    from ratchet.gates.evaluation.evaluator import PairedEvaluator
    from ratchet.gates.model_client import HttpModelClient
    from ratchet.gates.registry import MlflowRegistry
    from ratchet.gates.rollout_judge import EvidenceJudge
    from ratchet.materializer.datasets import IngestKeys, LakeDatasets
    from ratchet.rewards.judge.records import JudgeRecords
    from ratchet.rewards.scorer_set import build_scorer_set
    from ratchet.trainers.choose import choose
    from ratchet.trainers.code_digest import code_digest

    name, clock = loop.line.name, SystemClock()
    artifacts = open_artifacts(home)
    gate = loop.gate.model_copy(update={"level": evaluation_level(loop)})
    rewards = build_scorer_set(loop.rewards, JudgeRecords(home.judgements, name))
    opened = open_extensions(loop, folder, home, artifacts, gate)
    ensure_keyring(home.user_keys, clock.now())
    keys = IngestKeys(spans=KeyFile(home.span_keys(name)), users=KeyFile(home.user_keys))
    datasets = LakeDatasets(home.lake(name), loop, folder, rewards, artifacts, clock, keys, opened.dialects)
    return LineContext(
        loop=loop,
        folder=folder,
        ledger=ledger or open_ledger(home),
        clock=clock,
        artifacts=artifacts,
        sources=opened.sources,
        datasets=datasets,
        rewards=rewards,
        choose=choose,
        trainers=opened.trainers,
        code=code_digest(),
        executor=open_executor(loop, folder, home),
        server=opened.server,
        client=HttpModelClient,
        mirror_client=lambda endpoint: HttpModelClient(endpoint, MIRROR_REQUESTS, MIRROR_TIMEOUT, timeouts=1),
        evaluator=PairedEvaluator(artifacts, rewards, gate, may_pass_early=len(opened.checks) == len(BUILT_IN_CHECKS)),
        checks=opened.checks,
        registry=MlflowRegistry(home.mlflow_url, home.root / "mlflow"),
        router=opened.router,
        metrics=opened.metrics,
        judge=EvidenceJudge(loop.rollout),
        scratch=home.scratch,
        progress=progress,
        holder=process_holder(),
        cost=lambda plan: estimate_plan_cost(plan, loop, folder, artifacts, home.scratch),
        price=lambda seconds: price_of_time(loop, folder, seconds),
        versions=opened.versions,
    )


def open_executor(loop: Loop, folder: Path, home: Home) -> Executor:
    """Open the executor for the line's jobs: this machine, or the cluster named in the loop file.

    Raises ConfigError if the cluster's profile or kubeconfig is missing or invalid.
    """
    name = loop.line.name
    if loop.cluster is None:
        from ratchet.local.executor import LocalExecutor

        return LocalExecutor(home.jobs(name), home.artifacts)
    return open_cluster(loop, loop.cluster, folder, home)
