"""Operations on the cluster of a line: opens the executor, renders manifests, guards gangs, reads job logs, checks the cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from ratchet.contracts.errors import ConfigError, Permanent, RatchetError
from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.contracts.jobs.training import JobSpec
from ratchet.contracts.loop import Loop
from ratchet.flows.composition.artifacts import open_artifacts
from ratchet.flows.composition.extensions import open_trainers
from ratchet.flows.composition.late import made
from ratchet.flows.composition.samples import samples
from ratchet.flows.composition.stores import job_documents
from ratchet.flows.config.home import Home

if TYPE_CHECKING:
    from ratchet.k8s.gangs.executor import KubernetesExecutor
    from ratchet.k8s.manifests.render import Part, Site
    from ratchet.k8s.storage.sync import Remote


def open_cluster(loop: Loop, settings: ClusterSettings, folder: Path, home: Home) -> KubernetesExecutor:
    """Open the executor for the cluster named in the loop file. Sends no request yet."""
    from ratchet.k8s.api.client import connect
    from ratchet.k8s.gangs.executor import KubernetesExecutor
    from ratchet.k8s.profiles.profile import load_profile

    name, profile, restarts = loop.line.name, load_profile(settings.profile, folder), loop.training.max_restarts
    cluster = made(lambda: connect(settings.context), late=True)  # a loop file is checked without a kubeconfig
    return KubernetesExecutor(
        cluster, name, settings, profile, home.jobs(name), open_artifacts(home), restarts, documents=job_documents(home, name)
    )


def open_job_bucket(loop: Loop, home: Home) -> Remote | None:
    """Return the bucket of the line's jobs with the folders that it stands for. Sends no request yet.

    None if its jobs have none, or if the home folder is not below the mount of the pods, so that the keys in the bucket are not known.
    """
    from ratchet.k8s.storage.sync import open_remote
    from ratchet.runtime.jobs.run_folder import RunFolders

    home = Home(home.root.resolve())
    if loop.cluster is None or not home.root.is_relative_to(Path(loop.cluster.volume.mount).resolve()):
        return None
    folders = RunFolders(home.jobs(loop.line.name), job_documents(home, loop.line.name))
    return open_remote(loop.cluster.volume, folders, open_artifacts(home))


def cluster_site(loop: Loop, folder: Path, home: Home) -> tuple[Site, list[tuple[str, JobSpec | str]]]:
    """Return the line's site on its cluster, and a sample job per method, or the reason why there is none.

    If RATCHET_HOME is not on the shared volume, the folder `ratchet` on that volume is assumed. This is the case on a machine that only
    prepares the cluster. Raises ConfigError if the loop file has no section [cluster].
    """
    if loop.cluster is None:
        raise ConfigError(f"line {loop.line.name} trains on this machine: its loop file has no section [cluster]")
    site = _site(loop, loop.cluster, folder, home)
    return site, [(method, job or problem) for method, job, problem in samples(loop, open_trainers(loop))]


def _site(loop: Loop, settings: ClusterSettings, folder: Path, home: Home) -> Site:
    from ratchet.k8s.manifests.render import Site
    from ratchet.k8s.profiles.profile import load_profile

    mount = Path(settings.volume.mount)
    home = home if home.root.is_relative_to(mount) and home.root != mount else Home(mount / "ratchet")
    profile = load_profile(settings.profile, folder)
    return Site(loop.line.name, settings, profile, home.jobs(loop.line.name), home.artifacts, loop.training.max_restarts)


def refuse_impossible_job(spec: JobSpec, loop: Loop, folder: Path, home: Home) -> None:
    """Raise ConfigError if the cluster of the loop file can never run a job: for its profile, its pool, its image or its caps.

    Without a section [cluster], every job fits.
    """
    from ratchet.k8s.gangs.meter import refuse_what_cannot_be_metered

    if loop.cluster is None:
        return
    site = _site(loop, loop.cluster, folder, home)
    site.gang(spec)
    try:
        refuse_what_cannot_be_metered(site.settings, site.profile)
    except Permanent as error:
        raise ConfigError(str(error)) from error


def render_cluster(loop: Loop, folder: Path, home: Home, part: Part, others: Sequence[tuple[Loop, Path]] = (), **options: Any) -> str:
    """Render the manifests that the loop file requires on its cluster, as YAML.

    `part` selects them (`write_sheet`). `others` are further lines in the same namespace with the folders of their loop files. `options`
    are those of ratchet.k8s.manifests.environment.extras. Raises ConfigError if one of the others has another namespace, or if a method
    can have no gang; the administrator's objects alone need none.
    """
    from ratchet.k8s.manifests.environment import extras
    from ratchet.k8s.manifests.render import write_sheet

    site, jobs = cluster_site(loop, folder, home)
    if part != "admin" and (absent := [f"no gang for {method}: {' '.join(why.split())}" for method, why in jobs if isinstance(why, str)]):
        raise ConfigError("; ".join(absent))
    beside = [cluster_site(other, place, home)[0] for other, place in others]
    for other in beside:
        if other.settings.namespace != site.settings.namespace:
            raise ConfigError(
                f"line {other.line} is in the namespace {other.settings.namespace}, line {site.line} in {site.settings.namespace}; "
                "render each namespace by itself"
            )
    options["others"] = [(other.settings, other.profile) for other in beside]
    gangs = [(method, job) for method, job in jobs if not isinstance(job, str)]
    return write_sheet(site, gangs, extras(**options), part)


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
            report = str(error) if isinstance(error, RatchetError) else f"the guardian failed: {type(error).__name__}: {error}"
            if report != problem:
                problem = report
                yield report
        stop.wait(seconds)


def job_logs(loop: Loop, folder: Path, home: Home, job: str | None, lines: int, follow: bool) -> Iterator[str]:
    """Yield the last log lines of a job's pods and trainers on the cluster. The default job is the newest one.

    With `follow`, new lines are yielded as they arrive. Raises ConfigError if the loop file has no section [cluster].
    """
    from ratchet.k8s.gangs.logs import log_lines, newest_job

    if loop.cluster is None:
        raise ConfigError(f"line {loop.line.name} trains on this machine: its jobs' logs are below {home.jobs(loop.line.name)}")
    executor = open_cluster(loop, loop.cluster, folder, home)
    name = job or newest_job(executor)
    yield f"{name}:"
    yield from log_lines(executor, name, lines, follow, time.sleep)


def lint_cluster(loop: Loop, folder: Path, home: Home) -> list[tuple[str, str, str, str]]:
    """List the problems of the live cluster for the line's gangs: (level, subject, text, remedy); level is stop or note."""
    from ratchet.k8s.api.client import connect
    from ratchet.k8s.preflight.checks import find_problems

    site, jobs = cluster_site(loop, folder, home)
    return [(one.level, one.about, one.text, one.remedy) for one in find_problems(connect(site.settings.context), site, jobs)]
