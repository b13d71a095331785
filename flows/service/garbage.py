"""Deletes what nothing refers to any more: artifacts, files of the lakes, and run folders; and applies retention and withdrawn consent.

What the ledger names is kept, and whatever that names in turn. Files that nothing names are deleted after a grace period, because an effect
may have stored them for a row that it has not written yet.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Set
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import Field

from ratchet.contracts.cycle import Append
from ratchet.contracts.errors import Conflict, RatchetError, Retryable
from ratchet.contracts.ids import Digest, line_stream
from ratchet.contracts.model import Frozen
from ratchet.contracts.ports import Ledger
from ratchet.contracts.rows import GarbageCollected, row_of
from ratchet.contracts.serving import ModelVersion
from ratchet.flows.composition.artifacts import open_artifacts
from ratchet.flows.composition.installation import Installation
from ratchet.flows.core.folds.line import LineView, fold_line
from ratchet.flows.core.model_retention import Generation, expired_models, folders_of
from ratchet.flows.engine.context import LineContext, leased
from ratchet.flows.service.bucket_copies import delete_copies, job_buckets
from ratchet.flows.service.erase import LineEraser
from ratchet.flows.service.reach import named, reachable
from ratchet.materializer.erasure.lake_rows import Target
from ratchet.materializer.lake.tables import Lake, TableName
from ratchet.materializer.lake.unused import READER_SECONDS, sweep
from ratchet.materializer.quarantine.kept import KeptRecords
from ratchet.runtime.artifacts import DIGEST, FolderArtifacts
from ratchet.runtime.jobs.job_protocol import plan_folder

_DAY = 86_400.0


class Collected(Frozen):
    """What a garbage collection of a line deleted. Counts are zero or more."""

    line: str
    rows: dict[str, int] = Field(default_factory=dict)
    """Table, or `artifacts` -> number of rows that retention or withdrawn consent removed."""
    files: dict[str, int] = Field(default_factory=dict)
    """Place -> number of deleted files."""
    waiting: int = 0
    """Number of files of the lake to which nothing refers any more, and which are kept for readers that have begun before."""
    bytes: int = 0
    left: tuple[str, ...] = ()
    """What could not be deleted, and why."""
    postponed: bool = False
    """Whether rows were left alone, because a cycle is open."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell: nothing was deleted, and nothing could not be."""
        return self.deleted_nothing and not self.left

    @property
    def deleted_nothing(self) -> bool:
        """Whether nothing was deleted."""
        return not any(self.rows.values()) and not any(self.files.values())

    @property
    def summary(self) -> str:
        """The counts as one text."""
        counts = [f"{count} rows of {name}" for name, count in self.rows.items()]
        counts += [*(f"{count} files of {name}" for name, count in self.files.items()), f"{self.bytes} bytes"]
        return "; ".join([", ".join(counts), *(f"not reached: {text}" for text in self.left)])


def collect_artifacts(
    artifacts: FolderArtifacts, ledger: Ledger, grace: float, dry_run: bool, expired: Set[Digest] = frozenset()
) -> tuple[int, int]:
    """Delete the artifacts that nothing reaches and that are older than `grace` seconds, and parts of interrupted copies.

    `expired` are model folders that the ledger still names and that may go, with the files that only they have. Return the numbers of files
    and of bytes. With `dry_run`, nothing is deleted.
    """
    if not dry_run:
        _restore_renamed(artifacts)
    old = [(key, path) for key, path in artifacts.contents() if _age(path) >= grace]
    kept = reachable(artifacts, named(artifacts, ledger), expired) if old else set()
    files = size = 0
    parts = [("", path) for path in artifacts.root.glob(f"*/**/{_ASIDE}*") if path.is_file() and _age(path) >= grace]
    for key, path in [*(one for one in old if one[0] not in kept), *parts]:
        bytes_ = path.stat().st_size
        if dry_run or _delete(path, key, grace):
            if key and not dry_run:
                artifacts.forget(key)
            files, size = files + 1, size + bytes_
    return files, size


_ASIDE = ".part-"
"""Beginning of the name of a content that is being deleted. The rest is its digest."""


def _restore_renamed(artifacts: FolderArtifacts) -> None:
    """Give a content its name back if an earlier collection died after it had renamed it. It may have been in use again."""
    for aside in artifacts.root.glob(f"sha256/??/{_ASIDE}*"):
        key = aside.name.removeprefix(_ASIDE)
        if DIGEST.fullmatch(key):
            with contextlib.suppress(FileExistsError):
                os.link(aside, artifacts.here(key))
            aside.unlink()


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _delete(path: Path, key: Digest, grace: float) -> bool:
    """Delete a file unless it is in use again.

    Storing a content that exists makes it new. The file is renamed first, so that a content that is stored at the same time is either seen
    here or written again.
    """
    if not key:
        path.unlink(missing_ok=True)
        return True
    aside = path.with_name(f"{_ASIDE}{key}")
    path.rename(aside)
    used = _age(aside) < grace
    if used:
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    aside.unlink()
    return not used


def collect_line(installation: Installation, context: LineContext, dry_run: bool = False) -> Collected:
    """Apply retention and withdrawn consent to a line, and delete its files and the artifacts that nothing refers to.

    Records what was deleted in the line's stream. Raises Retryable if another process works on the line.
    """
    home, line, settings = installation.home, context.line, context.loop.retention
    grace, now = settings.grace * _DAY, datetime.now(UTC)
    limits: dict[TableName, float | None] = {"traces": settings.traces, "feedback": settings.feedback, "quarantine": settings.quarantine}
    before: dict[TableName, datetime] = {name: now - timedelta(days=days) for name, days in limits.items() if days is not None}
    rows: dict[str, int] = {}
    files: dict[str, int] = {}
    size = waiting = 0
    eraser = LineEraser(installation, line, Target(withdrawn=True, before=before))
    postponed = installation.line(line).open_cycle is not None
    if home.lake(line).exists() and not postponed and not eraser.is_interrupted:
        found, has_begun = eraser.preview(), eraser.has_begun
        if (any(found.rows.values()) or has_begun) and not dry_run:
            found = eraser.run("its retention has ended, or consent was withdrawn")
            eraser.forget()
        rows, size = {name: count for name, count in found.rows.items() if count}, found.bytes
        files |= found.files
    with leased(context, "a garbage collection"):
        if home.lake(line).exists():
            lake = Lake(home.lake(line))
            if not dry_run:
                with lake.writing():
                    KeptRecords(lake.place).expire(int(now.timestamp() * 1_000_000))
            swept = sweep(lake, now.timestamp(), min(grace, READER_SECONDS), dry_run)
            _add(files, "lake", swept[:2])
            size, waiting = size + swept.bytes, swept.waiting
        expired = expired_folders(installation, context, now)
        _add(files, "artifacts", found_files := collect_artifacts(open_artifacts(home), installation.ledger, grace, dry_run, expired))
        size += found_files[1]
        left = list[str]()
        if not dry_run and not eraser.is_interrupted:
            size += _delete_left(installation, context.line, files, left)
        _add(files, "run folders", removed := _collect_runs(installation, context, grace, dry_run))
        size += removed[1]
        done = Collected(line=line, rows=rows, files=files, waiting=waiting, bytes=size, left=tuple(left), postponed=postponed)
        if not dry_run and not done.deleted_nothing:
            _record(context, done)
    return done


def _delete_left(installation: Installation, line: str, files: dict[str, int], left: list[str]) -> int:
    """Delete what erasures have left in buckets, add the counts to `files` and the reasons to `left`, and return the bytes."""
    size = 0
    with contextlib.suppress(Retryable):  # the next collection tries again
        for place, deleted in delete_copies(open_artifacts(installation.home), installation.home, installation.cycles(line), (), False):
            _add(files, place, deleted[:2])
            size += deleted.bytes
            left += [deleted.left] if deleted.left else []
    return size


def expired_folders(installation: Installation, context: LineContext, now: datetime) -> set[Digest]:
    """Return the model folders of the line that retention lets go, and that no other version of any line needs.

    The server and the router are asked what serves. Raises Retryable if one of them does not answer, because a model in use must stay.
    """
    settings, line = context.loop.retention, installation.line(context.line)
    if settings.models is None:
        return set()
    cycles = installation.cycles(context.line)
    made = [Generation(cycle.candidate, cycle.ended_at) for cycle in cycles if cycle.candidate is not None]
    in_use = {endpoint.tag for endpoint in context.server.running()}
    if (route := context.router.read(context.line)) is not None:
        in_use |= {backend.tag for backend in route.backends}
    for cycle in cycles:
        if not cycle.ended:
            in_use |= {one.tag for one in (cycle.champion, cycle.baseline, cycle.start, cycle.candidate) if one is not None}
    expired = expired_models(line, made, in_use, settings, now)
    gone = {one.tag for one in expired}
    kept = [
        one for view in installation.lines() for one in _versions(installation, view) if view.line != context.line or one.tag not in gone
    ]
    return folders_of(expired) - folders_of(kept)


def _versions(installation: Installation, line: LineView) -> list[ModelVersion]:
    base, cycles = line.base, installation.cycles(line.line)
    versions = [one for cycle in cycles for one in (cycle.candidate, None if cycle.ended else cycle.start) if one is not None]
    return [*([base] if base is not None else []), *versions]


def _add(files: dict[str, int], place: str, counted: tuple[int, int]) -> None:
    if counted[0]:
        files[place] = files.get(place, 0) + counted[0]


def _collect_runs(installation: Installation, context: LineContext, grace: float, dry_run: bool) -> tuple[int, int]:
    """Delete the run folders of cycles that ended longer than `grace` seconds ago, and in the home those of plans that no cycle has.

    Nothing is deleted while the present cluster does not say which jobs are left there.
    """
    root, cycles = installation.home.jobs(context.line), installation.cycles(context.line)
    try:
        live = set(context.executor.live())
    except RatchetError:
        return 0, 0
    now, kept = context.clock.now(), set[str]()
    for cycle in cycles:
        busy = not cycle.ended or any(incarnation.job in live for incarnation in cycle.incarnations)
        recent = cycle.ended_at is not None and (now - cycle.ended_at).total_seconds() < grace
        if busy or recent:
            kept.update(plan_folder(plan.id) for plan in cycle.plans)
    known = {plan_folder(plan.id) for cycle in cycles for plan in cycle.plans}
    files = size = 0
    for bucket in job_buckets(cycles, installation.home)[0]:  # first, because a missing folder of the home is downloaded again
        with contextlib.suppress(Retryable):  # the next collection tries again
            done = bucket.collect(known - kept, dry_run)
            files, size = files + done.files, size + done.bytes
    if live.difference(incarnation.job for cycle in cycles for incarnation in cycle.incarnations):
        kept.update(folder.name for folder in root.glob("*") if folder.name not in known)  # one of them may be of such a job
    for folder in sorted(root.iterdir()) if root.exists() else ():
        if folder.is_symlink() or not folder.is_dir() or not re.fullmatch("[0-9a-f]{16}", folder.name):
            continue
        if folder.name not in kept and _age(folder) >= grace:
            found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
            files, size = files + len(found), size + sum(path.stat().st_size for path in found)
            if not dry_run:
                shutil.rmtree(folder, ignore_errors=True)
    return files, size


def _record(context: LineContext, done: Collected) -> None:
    """Write what was deleted to the line's stream, from which the event comes. Another writer may be faster; then it is tried again."""
    for _ in range(20):
        line = fold_line(context.line, context.ledger.read(line_stream(context.line)))
        if not line.rows:
            return
        row = row_of("collected", GarbageCollected(rows=done.rows, files=done.files, bytes=done.bytes))
        try:
            context.ledger.append([Append(stream=line_stream(context.line), after=line.seq, rows=(row,))], None, context.clock.now())
        except Conflict:
            continue
        return
