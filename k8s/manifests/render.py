"""Rendered manifests: all objects that a loop file needs on a cluster, as one YAML stream.

The objects are in the order of application, each below a comment with its purpose and the party that applies it. The end lists
requirements that cannot be rendered. This module does not connect to a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.contracts.jobs.training import JobSpec
from ratchet.k8s.manifests.environment import BY_HAND, PER_GANG, Extras, Rendered, reminders, render_environment
from ratchet.k8s.manifests.gang_manifest import RAY_SECRET, RenderContext, node_class_name, render
from ratchet.k8s.manifests.network import gang_network_policy
from ratchet.k8s.manifests.pod_objects import Shape, VolcanoJob, manifest
from ratchet.k8s.manifests.pools import refuse_larger, static_pool
from ratchet.k8s.manifests.ray_job import SECRET_KEY, ray_job, ray_job_policy
from ratchet.k8s.profiles.profile import Profile
from ratchet.runtime.jobs.job_protocol import PodTask

Part = Literal["all", "admin", "gang", "ray-job"]


@dataclass(frozen=True)
class Site:
    """A line and the cluster that it trains on."""

    line: str
    settings: ClusterSettings
    profile: Profile
    root: Path
    """Folder of the line's run folders; on the volume."""
    artifacts: Path
    """Folder of the artifacts; on the volume."""
    max_restarts: int
    """training.max_restarts of the loop file."""

    def gang(self, spec: JobSpec) -> VolcanoJob:
        """Render the gang of a job. Raises ConfigError if the job does not fit the cluster's settings or the whole pool."""
        if self.settings.pool.kind != "none":
            refuse_larger(spec.nodes, self.settings)
        return render(
            spec,
            RenderContext(
                line=self.line,
                settings=self.settings,
                profile=self.profile,
                plan_folder=self.root / spec.plan,
                artifacts=self.artifacts,
                max_restarts=self.max_restarts,
            ),
        )

    @property
    def node_class(self) -> str | None:
        """Name of the EC2 node class that the line's static pools refer to; None if Ratchet renders none for them."""
        rendered = self.settings.pool.kind == "static" and self.profile.provider == "aws" and not self.profile.node_class
        return node_class_name(self.settings) if rendered else None


def write_sheet(site: Site, jobs: Sequence[tuple[str, JobSpec]], extras: Extras, part: Part = "all") -> str:
    """Return the rendered manifests as a YAML stream.

    `jobs` are pairs of a method and a sample job. `part` selects the administrator's objects, the gangs' objects, both, or the gangs as
    RayJobs. Raises ConfigError for RayJobs if no job runs on Ray.
    """
    if part == "ray-job":
        return _ray_jobs(site, jobs)
    objects = render_environment(site.settings, site.profile, extras) if part != "gang" else []
    gangs = [(method, site.gang(job)) for method, job in jobs] if part != "admin" else []
    for method, gang in gangs:
        objects += _of_gang(site, method, gang)
    documents = [f"# Line {site.line} on profile {site.settings.profile}.", *(_document(rendered) for rendered in objects)]
    nemo = any(task.name == PodTask.HEAD.value for _, gang in gangs for task in gang.spec.tasks)
    return "\n---\n".join(documents) + "\n" + _needed(reminders(site.settings, site.profile, extras, nemo), part)


def _of_gang(site: Site, method: str, gang: VolcanoJob) -> list[Rendered]:
    name, found = gang.metadata.name or "", []
    if site.settings.pool.kind == "static":
        pool = static_pool(name, gang.spec.min_available, site.settings, site.profile)
        found.append(Rendered(pool, f"one node for each pod of the gang, all at once (a sample for {method})", PER_GANG))
    gang_policy = gang_network_policy(name, site.settings.namespace, site.settings.volume.bucket)
    bucket = site.settings.volume.bucket
    whom = f"each other, egress to {', '.join(bucket.cidrs)} on the bucket's port" if bucket else "each other"
    found.append(Rendered(gang_policy, f"allows the gang's pods traffic with {whom} and nothing else (a sample for {method})", PER_GANG))
    found.append(Rendered(gang, f"one training attempt; all of its pods start together (a sample for {method})", PER_GANG))
    return found


def _ray_jobs(site: Site, jobs: Sequence[tuple[str, JobSpec]]) -> str:
    gangs = [(method, site.gang(job)) for method, job in jobs]
    on_ray = [(method, gang) for method, gang in gangs if any(task.name == PodTask.HEAD.value for task in gang.spec.tasks)]
    if not on_ray:
        raise ConfigError('no job of this line runs on Ray; a RayJob needs a method on NeMo RL, for example training.grpo_on = "nemo-rl"')
    objects = []
    for method, gang in on_ray:
        policy = ray_job_policy(gang, site.settings.volume.bucket)
        objects.append(Rendered(policy, "lets the pods talk to each other, and KubeRay's operator read the job's state", BY_HAND))
        objects.append(Rendered(ray_job(gang), f"one training attempt on a Ray cluster of KubeRay (a sample for {method})", BY_HAND))
    key = f"# KubeRay reads Ray's token from the key {SECRET_KEY} of the Secret {RAY_SECRET}, and needs Volcano as its batch scheduler."
    return "\n---\n".join([key, *(_document(rendered) for rendered in objects)]) + "\n"


def _document(rendered: Rendered) -> str:
    body = manifest(rendered.shape)
    return f"# {body['kind']} {body['metadata']['name']}: {rendered.why}. Applied by {rendered.by}.\n{as_yaml(rendered.shape)}".rstrip()


def as_yaml(shape: Shape) -> str:
    """Return one object as YAML. Raises ConfigError if PyYAML is not installed."""
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("writing manifests needs the extra `cluster`; run pip install 'ratchet[cluster]'") from error

    class Plain(yaml.SafeDumper):  # type: ignore[misc]
        """YAML dumper without anchors and aliases, so that each object can be read on its own."""

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
            return True

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Plain.add_representer(str, text)
    return str(yaml.dump(_filled(manifest(shape)), Dumper=Plain, sort_keys=False, allow_unicode=True, width=140))


EMPTY_SAYS_NOTHING = frozenset({"labels", "annotations", "nodeSelector", "tolerations"})


def _filled(value: Any) -> Any:
    """Remove empty maps and lists that have no effect. An empty podSelector stays, because it selects all pods."""
    if isinstance(value, dict):
        return {key: _filled(item) for key, item in value.items() if item or key not in EMPTY_SAYS_NOTHING}
    return [_filled(item) for item in value] if isinstance(value, list) else value


def _needed(requirements: Sequence[str], part: Part) -> str:
    if not requirements or part == "gang":
        return ""
    return "\n".join(["# Not rendered: requirements and notes", *(f"# - {one}" for one in requirements)]) + "\n"
