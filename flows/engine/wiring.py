"""Selects the implementation of each port. This is the only engine file that imports other packages' implementations.

The imports are inside the functions, because some of the packages take seconds to import.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from contracts.cluster import ClusterSettings
from contracts.errors import ConfigError, RatchetError
from contracts.ids import canonical
from contracts.loop import Loop, SourceSettings
from contracts.model import count_parameters
from contracts.ports import Artifacts, Executor, Ledger, Progress, TraceSource, Trainer
from contracts.training import Cost, JobSpec, Method, TrainingPlan
from flows.config.home import Home
from flows.core.triggers import evaluation_level
from flows.ledger.sql import SqlLedger
from runtime.artifacts import FolderArtifacts, write_atomic

if TYPE_CHECKING:
    from flows.engine.context import LineContext
    from k8s.gangs.executor import KubernetesExecutor
    from k8s.manifests.render import Site
    from local.service import ManagedProcess


class SystemClock:
    """A clock that uses the machine's time."""

    def now(self) -> datetime:
        """Return the current time in UTC."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """Block the thread for `seconds` seconds."""
        time.sleep(seconds)


def silent(_what: str, _done: int, _total: int) -> None:
    """Ignore a progress report. This is the default progress callback."""


def open_ledger(home: Home) -> Ledger:
    """Open the installation's ledger. A new database is created at first use."""
    return SqlLedger(home.ledger_url)


def build_line_context(loop: Loop, folder: Path, home: Home, progress: Progress = silent) -> LineContext:
    """Build the line context: all ports of one line, as selected by its loop file. Starts no process.

    `folder` is the folder of the loop file. Raises ConfigError if a named trainer, server or setting is not available.
    """
    from flows.engine.context import LineContext, process_holder
    from gates.checks import checks
    from gates.evaluate import PairedEvaluator
    from gates.model_client import HttpModelClient
    from gates.registry import MlflowRegistry
    from gates.rollout_judge import EvidenceJudge
    from local.router import LocalRouter
    from materializer.datasets import LakeDatasets
    from materializer.metrics import LakeMetrics
    from rewards.scorer_set import build_scorer_set
    from trainers.choose import choose
    from trainers.code_digest import code_digest

    name, clock = loop.line.name, SystemClock()
    artifacts = FolderArtifacts(home.artifacts)
    gate = loop.gate.model_copy(update={"level": evaluation_level(loop)})
    rewards = build_scorer_set(loop.rewards)
    datasets = LakeDatasets(home.lake(name), loop, folder, rewards, artifacts, clock)
    return LineContext(
        loop=loop,
        folder=folder,
        ledger=open_ledger(home),
        clock=clock,
        artifacts=artifacts,
        sources=tuple(open_source(source, folder, home, name) for source in loop.sources),
        datasets=datasets,
        rewards=rewards,
        choose=choose,
        trainers={method: installed("ratchet.trainers", _trainer(loop, method))() for method in loop.training.methods},
        code=code_digest(),
        executor=open_executor(loop, folder, home),
        server=installed("ratchet.servers", loop.serving.kind)(home.serving(name), home.artifacts, loop.serving.options),
        client=HttpModelClient,
        evaluator=PairedEvaluator(artifacts, rewards, gate),
        checks=checks(gate),
        registry=MlflowRegistry(home.mlflow_url, home.root / "mlflow"),
        router=LocalRouter(
            home.serving(name),
            home.receiver(name),
            home.token(name),
            loop.serving.router_port,
            assume_consent=loop.governance.consent == "assumed",
        ),
        metrics=LakeMetrics(home.lake(name)),
        judge=EvidenceJudge(loop.rollout),
        scratch=home.scratch,
        progress=progress,
        holder=process_holder(),
        cost=lambda plan: cost_of(plan, loop, folder, home),
    )


def open_executor(loop: Loop, folder: Path, home: Home) -> Executor:
    """Open the executor for the line's jobs: this machine, or the cluster named in the loop file.

    Raises ConfigError if the cluster's profile or kubeconfig is missing or invalid.
    """
    name = loop.line.name
    if loop.cluster is None:
        from local.executor import LocalExecutor

        return LocalExecutor(home.jobs(name), home.artifacts)
    return open_cluster(loop, loop.cluster, folder, home)


def open_cluster(loop: Loop, settings: ClusterSettings, folder: Path, home: Home) -> KubernetesExecutor:
    """Open the executor for the cluster named in the loop file. Sends no request yet."""
    from k8s.api.client import connect
    from k8s.gangs.executor import KubernetesExecutor
    from k8s.profiles.profile import load_profile

    name, profile, restarts = loop.line.name, load_profile(settings.profile, folder), loop.training.max_restarts
    return KubernetesExecutor(connect(settings.context), name, settings, profile, home.jobs(name), home.artifacts, restarts)


def open_source(source: SourceSettings, folder: Path, home: Home, line: str) -> TraceSource:
    """Open a trace source of a loop file. Relative paths start at the folder of the loop file."""
    from materializer.receive.sources import FileSource, SpoolSource

    if source.kind == "receiver":
        return SpoolSource(source.name, home.spool(line))
    return FileSource(source.name, source.kind, folder / str(source.path))


def start_receiver(loop: Loop, home: Home) -> str:
    """Start the OTLP/HTTP receiver of a line unless it runs, and return its base URL.

    The port is stored and reused after a restart, so that senders keep their configuration.
    """
    home.spool(loop.line.name).mkdir(parents=True, exist_ok=True)
    kept = home.receiver(loop.line.name).with_name("receiver-port")
    port = loop.serving.receiver_port or (int(kept.read_bytes()) if kept.exists() else 0)
    ready = _receiver(loop, home, port).ensure()
    write_atomic(kept, canonical(ready["port"]))
    return f"http://127.0.0.1:{ready['port']}"


def _receiver(loop: Loop, home: Home, port: int = 0) -> ManagedProcess:
    from local.service import ManagedProcess

    name = loop.line.name
    command = ["-m", "materializer.receive.receiver", "--spool", str(home.spool(name)), "--token-file", str(home.token(name))]
    command += ["--port", str(port)]
    return ManagedProcess(home.root / "lines" / name / "receiver", command, ready=home.receiver(name))


def stop_line(context: LineContext, home: Home) -> list[str]:
    """Stop every long-lived process of a line: receiver, router and model servers. Return one text per stopped process."""
    from local.router import LocalRouter

    stopped = []
    receiver = _receiver(context.loop, home)
    if receiver.process() is not None:
        receiver.stop()
        stopped.append(f"the receiver of {context.line}")
    if context.router.read(context.line) is not None:
        stopped.append(f"the router of {context.line}")
    LocalRouter(home.serving(context.line), home.receiver(context.line), home.token(context.line)).stop()
    for endpoint in context.server.running():
        context.server.stop(endpoint.tag)
        stopped.append(f"the model server of {endpoint.tag}")
    return stopped


PREFECT_SERVER = "server"
"""Name of the Prefect server's process folder, below RATCHET_HOME/prefect."""


def prefect_server(home: Home, command: Sequence[str], environment: Mapping[str, str]) -> ManagedProcess:
    """Return the handle of the installation's Prefect server process. `command` and `environment` are used only to start it."""
    from local.service import ManagedProcess

    return ManagedProcess(home.prefect / PREFECT_SERVER, command, environment)


def announce_service(port: int) -> None:
    """Announce that this long-lived process answers on `port`. The process itself calls this when it is ready."""
    from local.service import announce

    announce(port)


def open_artifacts(home: Home) -> Artifacts:
    """Open the installation's artifact store."""
    return FolderArtifacts(home.artifacts)


def estimate_cost(loop: Loop, folder: Path, method: str, recipe: Mapping[str, Any], parameters: int) -> dict[str, Any]:
    """Estimate the maximum cost of one attempt for a model with `parameters` weights.

    Return the estimate as JSON values. On a cluster it also contains `price` in the price table's currency, or None for unknown machines.
    """
    from trainers.estimate import estimate
    from trainers.recipes import KINDS, complete

    found = estimate(complete(KINDS[Method(method)], recipe), parameters, loop.training.nodes, loop.training.gpus).model_dump(mode="json")
    if loop.cluster is not None:
        from k8s.gangs.meter import at_most
        from k8s.profiles.profile import load_profile

        profile = load_profile(loop.cluster.profile, folder)
        found["price"] = at_most(profile, loop.cluster.pool.capacity, loop.training.nodes, found["seconds"])
    return found


def cost_of(plan: TrainingPlan, loop: Loop, folder: Path, home: Home) -> Cost:
    """Estimate the maximum time and price of one attempt at the plan, with the lower one of the cluster's caps."""
    model = open_artifacts(home).fetch(plan.start.files, home.scratch / "models" / plan.start.files)
    found = estimate_cost(loop, folder, plan.method, plan.recipe, count_parameters(model))
    caps = [cap for cap in (loop.cluster.cap_run, loop.cluster.cap_month) if cap is not None] if loop.cluster else []
    return Cost(seconds=found["seconds"], price=found.get("price"), cap=min(caps, default=None), basis=found["basis"])


def cluster_site(loop: Loop, folder: Path, home: Home) -> tuple[Site, list[tuple[str, JobSpec | str]]]:
    """Return the line's site on its cluster, and a sample job per method, or the reason why there is none.

    If RATCHET_HOME is not on the shared volume, the folder `ratchet` on that volume is assumed. This is the case on a machine that only
    prepares the cluster. Raises ConfigError if the loop file has no section [cluster].
    """
    from flows.engine.samples import samples
    from k8s.manifests.render import Site
    from k8s.profiles.profile import load_profile

    if loop.cluster is None:
        raise ConfigError(f"line {loop.line.name} trains on this machine: its loop file has no section [cluster]")
    mount = Path(loop.cluster.volume.mount)
    home = home if home.root.is_relative_to(mount) and home.root != mount else Home(mount / "ratchet")
    profile = load_profile(loop.cluster.profile, folder)
    site = Site(loop.line.name, loop.cluster, profile, home.jobs(loop.line.name), home.artifacts, loop.training.max_restarts)
    trainers: dict[str, Trainer] = {method: installed("ratchet.trainers", _trainer(loop, method))() for method in loop.training.methods}
    jobs: list[tuple[str, JobSpec | str]] = []
    for method, job, problem in samples(loop, trainers):
        jobs.append((method, job if job else problem))
    return site, jobs


def render_cluster(loop: Loop, folder: Path, home: Home, part: str, **words: Any) -> str:
    """Render the manifests that the loop file requires on its cluster, as YAML.

    `part` is admin, gang or all. `words` are the options of k8s.manifests.environment.extras.
    """
    from k8s.manifests.environment import extras
    from k8s.manifests.render import write_sheet

    site, jobs = cluster_site(loop, folder, home)
    return write_sheet(site, jobs, extras(**words), "admin" if part == "admin" else "gang" if part == "gang" else "all")


def guard_cluster(loop: Loop, folder: Path, home: Home, seconds: float, once: bool, stop: Event | None = None) -> Iterator[str]:
    """Run the guardian of the line's gangs every `seconds` seconds until `stop` is set. Yield one text per repair.

    The guardian must not end because of an error: an error is yielded once while it repeats, and the check is retried.
    With `once`, the guardian checks once and raises errors. Raises ConfigError if the loop file has no section [cluster].
    """
    if loop.cluster is None:
        raise ConfigError(f"line {loop.line.name} trains on this machine: its loop file has no section [cluster]")
    executor, stop, problem = open_cluster(loop, loop.cluster, folder, home), stop or Event(), ""
    if once:
        yield from executor.guard()
        return
    while not stop.is_set():
        try:
            yield from executor.guard()
            problem = ""
        except Exception as error:
            said = str(error) if isinstance(error, RatchetError) else f"the guardian failed: {type(error).__name__}: {error}"
            if said != problem:
                problem = said
                yield said
        stop.wait(seconds)


def job_words(loop: Loop, folder: Path, home: Home, job: str | None, lines: int, follow: bool) -> Iterator[str]:
    """Yield the last log lines of a job's pods and trainers on the cluster. The default job is the newest one.

    With `follow`, new lines are yielded as they arrive. Raises ConfigError if the loop file has no section [cluster].
    """
    from k8s.gangs.logs import newest_job, words

    if loop.cluster is None:
        raise ConfigError(f"line {loop.line.name} trains on this machine: its jobs' logs are below {home.jobs(loop.line.name)}")
    executor = open_cluster(loop, loop.cluster, folder, home)
    name = job or newest_job(executor)
    yield f"{name}:"
    yield from words(executor, name, lines, follow, SystemClock().sleep)


def lint_cluster(loop: Loop, folder: Path, home: Home) -> list[tuple[str, str, str, str]]:
    """List the problems of the live cluster for the line's gangs: (level, subject, text, remedy); level is stop or note."""
    from k8s.api.client import connect
    from k8s.preflight.checks import lint

    site, jobs = cluster_site(loop, folder, home)
    return [(one.level, one.about, one.text, one.remedy) for one in lint(connect(site.settings.context), site, jobs)]


def _trainer(loop: Loop, method: str) -> str:
    """Return the entry point's name for a method. The loop file's `grpo_on` selects the one for GRPO."""
    return loop.training.grpo_on if method == "grpo" and loop.training.grpo_on != "trl" else method


def installed(group: str, name: str) -> Callable[..., Any]:
    """Load an entry point of an installed package by group and short name.

    Raises ConfigError with the available names if the name is not installed.
    """
    offers = {entry.name: entry for entry in entry_points(group=group)}
    if name not in offers:
        raise ConfigError(
            f"no {group.removeprefix('ratchet.').removesuffix('s')} {name!r} is installed; available: {', '.join(sorted(offers))}"
        )
    return offers[name].load()  # type: ignore[no-any-return]
