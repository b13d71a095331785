"""Download: copies what a job reads from the bucket to its pod's disk.

This covers the inputs, checked by digest, the checkpoint from which the incarnation resumes, and files of earlier incarnations.
"""

from __future__ import annotations

import json
import sys
import time

from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import Digest, digest, digest_file
from ratchet.contracts.jobs.training import JobSpec, ResumePoint
from ratchet.contracts.schema import parse, stamped
from ratchet.k8s.pod.pod_context import NAMES, PodContext
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.jobs.job_protocol import IncarnationFile, RunFile, incarnation_folder, job_record
from ratchet.runtime.jobs.run_folder import inside, lay_inputs
from ratchet.runtime.manifest import MANIFEST

POLL_SECONDS = 2.0
"""Seconds between two polls for the start file of the gang's first pod."""


def bring(place: PodContext) -> None:
    """Download the job's record and its inputs.

    Downloaded files stay after an error, so a repeated call continues. Raises Permanent if content does not match its recorded digest
    or is missing.
    """
    spec = _spec(place)
    for source in spec.inputs.values():
        _artifact(place, source, whole=True)
    lay_inputs(spec, place.run, place.artifacts)
    for source in spec.inputs.values():  # the inputs now lie in the run folder, so delete the first copy to save disk space
        for part in (place.artifacts.files(source) or {}).values():
            place.artifacts.path(part).unlink(missing_ok=True)
        place.artifacts.path(source).unlink(missing_ok=True)


def bring_past(place: PodContext) -> None:
    """Download the resume point with its checkpoint, the event logs of earlier incarnations, and the artifacts whose names jobs of this
    plan have bound.

    Such artifacts are precomputed reference log-probabilities and checkpoints that earlier incarnations published. Missing or changed
    checkpoints and artifacts are reported on stderr and skipped.
    """
    point = _start(place)
    if point is not None:
        write_atomic(place.run / RunFile.RESUME, stamped(point))
        try:
            _step(place, point)
        except Permanent as error:  # the trainer finds the checkpoint incomplete and starts from the beginning, as on a volume
            sys.stderr.write(f"{error}\n")
    for name in place.bucket.list(f"{place.key(place.run)}/{incarnation_folder('')}"):
        number, _, rest = name.partition("/")
        if rest == IncarnationFile.EVENTS and number.isdigit() and int(number) < place.incarnation:
            place.fetch(place.run / incarnation_folder(number) / IncarnationFile.EVENTS)
    for name in place.bucket.list(f"{place.key(place.run.parent)}/{NAMES}/"):
        bound = place.artifacts.root / "names" / name
        if name and "/" not in name and (bound.exists() or place.fetch(bound)):
            try:
                _artifact(place, str(json.loads(bound.read_bytes())["digest"]), whole=False)
            except Permanent as error:  # the job computes the artifact again
                sys.stderr.write(f"{error}\n")
                bound.unlink()


def _spec(place: PodContext) -> JobSpec:
    """Return the job's record. Raises Permanent unless its digest is the one in the pod's environment."""
    key = place.key(place.run.parents[1] / job_record(place.job))
    data = place.bucket.get(key)
    if data is None or digest(data) != place.spec:
        raise Permanent(f"{key} is {'missing' if data is None else 'another job'}; the service writes it before it submits a gang")
    return parse(JobSpec, data)


def _start(place: PodContext) -> ResumePoint | None:
    """Return the resume point, which is the same for all pods of the gang.

    The first pod stores the currently pinned resume point in the start file, and the others wait for the file without a timeout. If it
    never appears, the gang is not whole, and the cluster detects that.
    """
    key = place.key(place.folder / IncarnationFile.START)
    if place.node == 0:
        place.bucket.put_new(key, place.bucket.get(place.key(place.run / RunFile.RESUME)) or b"null")
    while (stored := place.bucket.get(key)) is None:
        place.moved += 1  # the bucket answers, so waiting must not exhaust the timeout
        time.sleep(POLL_SECONDS)
    return None if stored == b"null" else parse(ResumePoint, stored)


def _step(place: PodContext, point: ResumePoint) -> None:
    """Download the manifest of a step and the files that it lists."""
    step = inside(place.run.parent, point.path)
    if not place.fetch(step / MANIFEST, point.manifest):
        raise Permanent(f"{place.key(step)} is no longer in the bucket")
    for name, expected in json.loads((step / MANIFEST).read_bytes())["files"].items():
        path = inside(step, name)
        if not (path.exists() and digest_file(path) == expected) and not place.fetch(path, expected):
            raise Permanent(f"{place.key(path)} is no longer in the bucket")


def _artifact(place: PodContext, key: Digest, whole: bool) -> None:
    """Download an artifact and, if it is a folder and `whole` is set, its files."""
    path = place.artifacts.path(key)
    if not path.exists() and not place.fetch(path, key):
        raise Permanent(f"artifact {key[:12]} is not in the bucket; its content must be uploaded before its name")
    for part in (place.artifacts.files(key) or {}).values() if whole else ():
        _artifact(place, part, whole=False)
