"""Drop folder of a job: the artifacts that it offers to the service, which verifies them and takes them over into its store.

A job cannot write to the artifact store. It writes to `RunFile.DROP` in its run folder, in the layout of `FolderArtifacts`. After a
successful end, the executor calls `take_over`, which copies the checkpoint of that incarnation and binds its name. Nothing else of the drop
folder reaches the store. Content is copied, not linked or moved, because a process that still has the file open could change it after it
was verified.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ratchet.contracts.errors import NewerRelease, Permanent
from ratchet.contracts.ids import Digest, canonical, checkpoint_name, digest
from ratchet.contracts.jobs.training import Checkpoint, JobSpec
from ratchet.contracts.schema import parse, unstamped
from ratchet.runtime.artifacts import DIGEST, MANIFEST_BYTES, FolderArtifacts
from ratchet.runtime.jobs.job_files import SMALL_BYTES, BadJobFile, is_folder, is_there, open_job_file, read_job_file
from ratchet.runtime.jobs.job_protocol import RunFile

GROWTH, ROOM_BYTES = 8, 1 << 30
"""A trained model may have at most GROWTH times the bytes of its job's inputs, plus ROOM_BYTES. A full-precision model that is trained from
a start model with 4-bit weights has eight times its bytes."""
_NAME_DEPTH, _CONTENT_DEPTH = 4, 5
"""Number of names at the end of a path that a job can replace by links, from its run folder on."""


def offered(run: Path, spec: JobSpec, incarnation: int) -> bool:
    """Return whether the drop folder in `run` binds the checkpoint of this incarnation. It does not after `take_over` and `clear`."""
    return is_there(_drop(run).place(checkpoint_name(spec.plan, spec.attempt, incarnation)))


def take_over(run: Path, spec: JobSpec, incarnation: int, artifacts: FolderArtifacts) -> None:
    """Verify the checkpoint of an incarnation in the drop folder, copy it to the artifacts and bind its name; the name comes last.

    Does nothing if the name is bound already, or not in the drop folder. A repeat after a crash continues. Raises Permanent if the
    checkpoint is damaged, incomplete, too large or of another plan or attempt, Retryable and OSError if the disk fails.
    """
    name = checkpoint_name(spec.plan, spec.attempt, incarnation)
    if artifacts.resolve(name) is not None:
        return
    try:
        _take(_drop(run), spec, incarnation, artifacts)
    except (Permanent, OSError):
        if artifacts.resolve(name) is None:  # otherwise another process has taken it over and cleared the folder meanwhile
            raise


def clear(run: Path) -> None:
    """Delete the drop folder, its names last, so that `offered` is true until everything is deleted. Raises OSError."""
    drop = run / RunFile.DROP
    for path in (drop / "sha256", drop) if is_folder(drop) else (drop,):
        if is_folder(path):
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _drop(run: Path) -> FolderArtifacts:
    return FolderArtifacts(run / RunFile.DROP)


def _take(drop: FolderArtifacts, spec: JobSpec, incarnation: int, artifacts: FolderArtifacts) -> None:
    name = checkpoint_name(spec.plan, spec.attempt, incarnation)
    path = drop.place(name)
    binding = read_job_file(path, SMALL_BYTES, _NAME_DEPTH)
    if binding is None:
        return  # the acceptance check reports the missing name
    try:
        key = _digest(unstamped(binding, "name binding")["digest"])
        path = drop.path(key)
        document = _document(drop, key, SMALL_BYTES)
        checkpoint = parse(Checkpoint, document)
        folders = [_digest(files) for files in (checkpoint.files, *([checkpoint.adapter.files] if checkpoint.adapter else []))]
        canonical(checkpoint)  # raises ValueError for figures that cannot be recorded
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, NewerRelease) as error:
        raise BadJobFile(path, f"does not describe a checkpoint ({type(error).__name__})") from None
    if (checkpoint.plan, checkpoint.attempt) != (spec.plan, spec.attempt) or not 1 <= checkpoint.incarnation <= incarnation:
        raise BadJobFile(path, "describes a checkpoint of another plan, attempt or incarnation")
    room = _room(spec, artifacts)
    for files in folders:
        artifacts.put(_document(drop, files, MANIFEST_BYTES))
        parts = artifacts.files(files)
        if parts is None:
            raise BadJobFile(drop.path(files), "is not the manifest of a folder")
        for part in sorted(set(parts.values())):
            room -= _copy(drop, part, artifacts, room)
    artifacts.put(document)
    artifacts.bind(name, key)


def _digest(value: object) -> Digest:
    if not isinstance(value, str) or not DIGEST.fullmatch(value):
        raise ValueError("not a digest")
    return value


def _room(spec: JobSpec, artifacts: FolderArtifacts) -> int:
    """Return the maximum number of bytes of the trained model."""
    keys = {key for source in spec.inputs.values() for key in (source, *(artifacts.files(source) or {}).values())}
    paths = [artifacts.path(key) for key in keys]
    return GROWTH * sum(path.stat().st_size for path in paths if path.exists()) + ROOM_BYTES


def _document(drop: FolderArtifacts, key: Digest, limit: int) -> bytes:
    data = read_job_file(drop.path(key), limit, _CONTENT_DEPTH)
    if data is None:
        raise BadJobFile(drop.path(key), "is missing")
    if digest(data) != key:
        raise BadJobFile(drop.path(key), "has another digest than its name")
    return data


def _copy(drop: FolderArtifacts, key: Digest, artifacts: FolderArtifacts, room: int) -> int:
    """Copy verified content and return its bytes.

    The drop folder must contain it, also if the artifacts already do. Otherwise a job could put content of the artifacts that it must not
    read into its model, and read it there in a later cycle.
    """
    path = drop.path(key)
    try:
        with open_job_file(path, _CONTENT_DEPTH) as file:
            size = os.fstat(file.fileno()).st_size
            if size > room:
                raise BadJobFile(path, f"makes the model larger than {GROWTH} times the job's inputs plus {ROOM_BYTES} bytes")
            if not artifacts.take(file, size, key):
                raise BadJobFile(path, "has another digest than its name, or changes")
    except FileNotFoundError:
        raise BadJobFile(path, "is missing") from None
    return size
