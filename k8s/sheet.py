"""Everything that a loop file asks of a cluster on one sheet: the objects in the order of applying, each under a line that says what it is
for and who applies it, and at the end what nobody can render. Knows how it is written down; talks to no server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from contracts.cluster import ClusterSettings
from contracts.errors import ConfigError
from contracts.training import JobSpec
from k8s.environment import PER_GANG, Extras, Rendered, reminders, render_environment
from k8s.gang import Ground, render
from k8s.network import opening
from k8s.objects import Shape, VolcanoJob, manifest
from k8s.pools import node_class_name, static_pool
from k8s.profile import Profile

Part = Literal["all", "admin", "gang"]


@dataclass(frozen=True)
class Site:
    """A line on a cluster."""

    line: str
    settings: ClusterSettings
    profile: Profile
    root: Path
    """Of the line's run folders; on the volume."""
    artifacts: Path
    max_restarts: int

    def gang(self, spec: JobSpec) -> VolcanoJob:
        """Of a job. ConfigError where it does not fit the cluster's settings."""
        return render(
            spec,
            Ground(
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
        """EC2's, by name, where a static pool of ours points at one."""
        rendered = self.settings.pool.kind == "static" and self.profile.provider == "aws" and not self.profile.node_class
        return node_class_name(self.settings) if rendered else None


def write_sheet(site: Site, jobs: Sequence[tuple[str, JobSpec | str]], extras: Extras, part: Part = "all") -> str:
    """YAML of many documents. `jobs`: method -> a sample job, or why there is none."""
    objects = render_environment(site.settings, site.profile, extras) if part != "gang" else []
    gangs = [(method, site.gang(job)) for method, job in jobs if not isinstance(job, str)] if part != "admin" else []
    for method, gang in gangs:
        objects += _of_gang(site, method, gang)
    lines = [f"# Line {site.line} on profile {site.settings.profile}.", *_absent(jobs, part)]
    documents = ["\n".join(lines), *(_document(rendered) for rendered in objects)]
    nemo = any(task.name == "head" for _, gang in gangs for task in gang.spec.tasks)
    return "\n---\n".join(documents) + "\n" + _needed(reminders(site.settings, site.profile, extras, nemo), part)


def _of_gang(site: Site, method: str, gang: VolcanoJob) -> list[Rendered]:
    name, found = gang.metadata.name or "", []
    if site.settings.pool.kind == "static":
        pool = static_pool(name, gang.spec.min_available, site.settings, site.profile)
        found.append(Rendered(pool, f"the gang's own nodes, as many as it has, all at once (a sample for {method})", PER_GANG))
    hole = opening(name, site.settings.namespace, site.settings.volume.bucket)
    bucket = site.settings.volume.bucket
    whom = f"each other, to {', '.join(bucket.cidrs)} on the bucket's port" if bucket else "each other"
    found.append(Rendered(hole, f"the gang's pods speak to {whom} and to nobody else (a sample for {method})", PER_GANG))
    found.append(Rendered(gang, f"one attempt of training, all of its pods or none (a sample for {method})", PER_GANG))
    return found


def _absent(jobs: Sequence[tuple[str, JobSpec | str]], part: Part) -> list[str]:
    return [f"# No gang for {method}: {' '.join(why.split())}" for method, why in jobs if isinstance(why, str)] if part != "admin" else []


def _document(rendered: Rendered) -> str:
    body = manifest(rendered.shape)
    return f"# {body['kind']} {body['metadata']['name']}: {rendered.why}. Applied by {rendered.by}.\n{as_yaml(rendered.shape)}".rstrip()


def as_yaml(shape: Shape) -> str:
    """One object. ConfigError without the package that writes YAML."""
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("writing manifests needs the extra `cluster`: pip install 'ratchet[cluster]'") from error

    class Plain(yaml.SafeDumper):  # type: ignore[misc]
        """Without references to what was said before: a person reads each object by itself."""

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
            return True

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Plain.add_representer(str, text)
    return str(yaml.dump(_filled(manifest(shape)), Dumper=Plain, sort_keys=False, allow_unicode=True, width=140))


EMPTY_SAYS_NOTHING = frozenset({"labels", "annotations", "nodeSelector", "tolerations"})


def _filled(value: Any) -> Any:
    """Without what says nothing when it is empty. An empty podSelector does say something: all pods."""
    if isinstance(value, dict):
        return {key: _filled(item) for key, item in value.items() if item or key not in EMPTY_SAYS_NOTHING}
    return [_filled(item) for item in value] if isinstance(value, list) else value


def _needed(words: Sequence[str], part: Part) -> str:
    if not words or part == "gang":
        return ""
    return "\n".join(["# Needed, and not rendered, or worth knowing:", *(f"# - {one}" for one in words)]) + "\n"
