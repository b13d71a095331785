"""What a job reads, from the bucket onto its pod's disk: inputs by their digests, where its incarnation resumes, and what was before it."""

from __future__ import annotations

import json
import sys
import time

from contracts.errors import Permanent
from contracts.files import write_atomic
from contracts.ids import Digest, digest, digest_file
from contracts.manifest import MANIFEST
from contracts.runfolder import EVENTS, RESUME, inside, lay_inputs
from contracts.training import JobSpec, ResumePoint
from k8s.place import NAMES, START, Place

LOOK_SECONDS = 2.0
"""Between two looks for what the gang's first pod says."""


def bring(place: Place) -> None:
    """The job and its inputs. Permanent where something is not what was recorded. What has come stays: a repeat goes on."""
    spec = _spec(place)
    for source in spec.inputs.values():
        _artifact(place, source, whole=True)
    lay_inputs(spec, place.run, place.artifacts)
    for source in spec.inputs.values():  # they are laid out beside the job: one copy is enough
        for part in (place.artifacts.files(source) or {}).values():
            place.artifacts.path(part).unlink(missing_ok=True)
        place.artifacts.path(source).unlink(missing_ok=True)


def bring_past(place: Place) -> None:
    """Where this incarnation resumes, the diaries of earlier ones, and what jobs of this plan have bound: a reference that was computed,
    a checkpoint that an earlier incarnation published."""
    point = _start(place)
    if point is not None:
        write_atomic(place.run / RESUME, point.model_dump_json().encode())
        try:
            _step(place, point)
        except Permanent as error:  # the trainer finds it not whole, and the attempt begins anew, as on a volume
            sys.stderr.write(f"{error}\n")
    for name in place.bucket.list(f"{place.key(place.run)}/i"):
        number, _, rest = name.partition("/")
        if rest == EVENTS and number.isdigit() and int(number) < place.incarnation:
            place.fetch(place.run / f"i{number}" / EVENTS)
    for name in place.bucket.list(f"{place.key(place.run.parent)}/{NAMES}/"):
        bound = place.artifacts.root / "names" / name
        if name and "/" not in name and (bound.exists() or place.fetch(bound)):
            try:
                _artifact(place, str(json.loads(bound.read_bytes())["digest"]), whole=False)
            except Permanent as error:  # what it names is made anew
                sys.stderr.write(f"{error}\n")
                bound.unlink()


def _spec(place: Place) -> JobSpec:
    """The job, as the service recorded it: what the pod was told is its digest."""
    key = place.key(place.run.parents[1] / "jobs" / f"{place.job}.json")
    data = place.bucket.get(key)
    if data is None or digest(data) != place.spec:
        raise Permanent(f"{key} is {'not there' if data is None else 'another job'}; the service writes it before it asks for a gang")
    return JobSpec.model_validate_json(data)


def _start(place: Place) -> ResumePoint | None:
    """The same for all pods of the gang: the first one fixes what is pinned now, and the others wait for its word, as long as it takes.
    Where it never comes the gang is not whole, and the cluster sees that."""
    key = place.key(place.folder / START)
    if place.node == 0:
        place.bucket.put_new(key, place.bucket.get(place.key(place.run / RESUME)) or b"null")
    while (said := place.bucket.get(key)) is None:
        place.moved += 1  # the bucket answers
        time.sleep(LOOK_SECONDS)
    return None if said == b"null" else ResumePoint.model_validate_json(said)


def _step(place: Place, point: ResumePoint) -> None:
    """Its manifest, and the files that it names."""
    step = inside(place.run.parent, point.path)
    if not place.fetch(step / MANIFEST, point.manifest):
        raise Permanent(f"{place.key(step)} is not in the bucket any more")
    for name, expected in json.loads((step / MANIFEST).read_bytes())["files"].items():
        path = inside(step, name)
        if not (path.exists() and digest_file(path) == expected) and not place.fetch(path, expected):
            raise Permanent(f"{place.key(path)} is not in the bucket any more")


def _artifact(place: Place, key: Digest, whole: bool) -> None:
    """Content, and, where it is a folder and `whole` is asked for, its files."""
    path = place.artifacts.path(key)
    if not path.exists() and not place.fetch(path, key):
        raise Permanent(f"artifact {key[:12]} is not in the bucket; whoever names it sends it first")
    for part in (place.artifacts.files(key) or {}).values() if whole else ():
        _artifact(place, part, whole=False)
