"""Upload: copies what a job writes from its pod's disk to the bucket, each item when it is complete.

- Heartbeat, event log, result and the ends of logs: every two seconds. The uploaded event log ends before a checkpoint that is newer
  than all checkpoints in the bucket, because the service accepts only checkpoints that it can find there.
- Sealed steps: the newest first, and the manifest last. A step that the trainer dropped is deleted after a delay, once a newer one is
  in the bucket. Its manifest is deleted first. A pinned step is never deleted.
- New artifacts: content before names. An existing name is not replaced.
- The end marker: after everything else.

In a gang of several pods, the first pod downloads the results of the other pods' trainers, the others download its result, and each
downloads all heartbeats.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobEvent, ResumePoint
from ratchet.contracts.schema import parse
from ratchet.k8s.pod.pod_context import NAMES, PodContext
from ratchet.runtime.jobs.job_protocol import IncarnationFile, RunFile, beat_file, incarnation_folder, result_file, step_folder, step_of
from ratchet.runtime.jobs.run_folder import inside
from ratchet.runtime.json_files import read_json
from ratchet.runtime.manifest import MANIFEST

LOG_SECONDS, LOG_BYTES = 10.0, 1 << 20
"""Minimum seconds between two uploads of a log, and the maximum number of bytes from its end that are uploaded."""
KEPT_SECONDS = 60.0
"""Seconds that a step stays in the bucket after the trainer dropped it. The service may be accepting it in that time."""


class Outbound:
    """Uploader of one pod. `upload_small_files` and `bulk` may run at the same time, each in one thread."""

    def __init__(self, place: PodContext, say: Callable[[str], None]) -> None:
        self.place, self.say = place, say
        self._sent: dict[str, tuple[tuple[int, int], float]] = {}
        """Maps each small file to its modification time and size at the last upload, and to the time of that upload."""
        self._event_log_size = -1
        """Bytes of the event log that were uploaded; -1 before the first upload."""
        self._theirs: set[str] = set()
        """Files that were downloaded from other pods."""
        self._steps: dict[str, float | None] = {}
        """Maps each step that is complete in the bucket to the time at which its deletion by the trainer was noticed; None before."""
        self._torn: set[str] = set()
        """Steps that cannot be uploaded: dropped during the upload, or different from their manifest."""
        self._tidied: set[str] = set()
        """Those of the steps in `_torn` that are completely deleted from the bucket."""
        self._content: set[str] = set()
        self._names: set[str] = set()

    def upload_small_files(self, last: bool = False) -> None:
        """Upload the small files and download those of the peers.

        `last` also uploads logs that were uploaded a moment ago, and skips the download.
        """
        place = self.place
        with suppress(FileNotFoundError):
            self._file(place.folder / beat_file(place.node))
        if place.node == 0:
            with suppress(FileNotFoundError):
                log = place.folder / IncarnationFile.EVENTS
                confirmed = b"".join(self._confirmed_events(log.read_bytes()))
                if len(confirmed) != self._event_log_size:  # the log only grows, so its length identifies it
                    place.bucket.put(place.key(log), confirmed)
                self._event_log_size = len(confirmed)
        if IncarnationFile.RESULT not in self._theirs:
            with suppress(FileNotFoundError):
                self._file(place.folder / IncarnationFile.RESULT, result_file(place.node))
        if not last and place.nodes > 1:
            self._hear_peers()
        for log in sorted(place.folder.glob("*.log")):
            with suppress(FileNotFoundError):
                self._file(log, seconds=0.0 if last else LOG_SECONDS, most=LOG_BYTES)

    def _file(self, path: Path, name: str = "", seconds: float = 0.0, most: int | None = None) -> None:
        there, name, now = path.stat(), name or path.name, time.monotonic()
        mark, (before, at) = (there.st_mtime_ns, there.st_size), self._sent.get(name, ((0, -1), -math.inf))
        if mark == before or now - at < seconds:
            return
        with path.open("rb") as file:
            file.seek(max(0, there.st_size - most) if most else 0)
            self.place.bucket.put(self.place.key(self.place.folder / name), file.read())
        self._sent[name] = (mark, now)

    def _hear_peers(self) -> None:
        place = self.place
        peers = set(range(place.nodes)) - {place.node}
        wanted = {file(node) for file in (beat_file, result_file) for node in peers}
        for name in sorted(wanted & place.bucket.list(f"{place.key(place.folder)}/").keys()):
            path = place.folder / name
            if name != IncarnationFile.RESULT or not path.exists():
                place.bucket.fetch(place.key(path), path)
                self._theirs.add(name)

    def _confirmed_events(self, event_log: bytes) -> Iterator[bytes]:
        """Yield the complete lines of the event log up to the first checkpoint that is newer than all steps in the bucket."""
        lines = [line for line in event_log.splitlines(keepends=True) if line.endswith(b"\n")]
        saved = [(number, step) for number, line in enumerate(lines) if (step := _saved(line))]
        newest = max((number for number, step in saved if step in self._steps), default=-1)
        yield from lines[: next((number for number, _ in saved if number > newest), len(lines))]

    def bulk(self) -> bool:
        """Upload the newest missing step, then artifacts, then delete steps that are no longer needed.

        Returns whether more steps remain to upload.
        """
        if new := self._unsent():
            name = max(new, key=step_of)
            try:
                self._step(name)
                self._steps[name] = None
            except (FileNotFoundError, Permanent) as error:  # dropped during the upload, or different from its manifest
                self._torn.add(name)
                self.say(f"{name} is not uploaded: {error}")
        self._artifacts()
        try:
            self._tidy()
        except Retryable as error:  # steps that are not deleted do no harm
            self.say(str(error))
        return bool(self._unsent())

    def _tidy(self) -> None:
        """Delete dropped steps and the remains of incomplete uploads from the bucket."""
        there, newest = self._sealed(), max(self._steps, key=step_of, default="")
        for name in sorted(self._steps.keys() - there - {newest}):
            since = self._steps[name] = self._steps[name] or time.monotonic()
            if time.monotonic() - since > KEPT_SECONDS and not self._needed(name):
                self._delete(name)
                del self._steps[name]
        for name in self._torn - self._tidied:
            self._delete(name)
            self._tidied.add(name)

    def _sealed(self) -> set[str]:
        place = self.place
        return {path.parent.name for path in place.folder.glob(f"{step_folder('*')}/{MANIFEST}")} if place.node == 0 else set()

    def _unsent(self) -> set[str]:
        """Return the sealed steps that are not uploaded yet.

        After a successful run no step is needed for resuming. Only steps newer than those in the bucket remain, because the event log
        refers to the newest.
        """
        new = self._sealed() - self._steps.keys() - self._torn
        if self.outcome() is Outcome.DONE:
            newest = max(self._steps, key=step_of, default=step_folder(-1))
            return {name for name in new if step_of(name) > step_of(newest)}
        return new

    def _step(self, name: str) -> None:
        """Upload a step from hard links, because the trainer may drop the step at any time."""
        place, step = self.place, self.place.folder / name
        spool = place.folder / ".sent" / name
        if not (spool / MANIFEST).exists():
            shutil.rmtree(spool.parent, ignore_errors=True)
            shutil.copytree(step, spool, copy_function=os.link)
        manifest = (spool / MANIFEST).read_bytes()
        for file, expected in json.loads(manifest)["files"].items():
            place.send(step / file, expected, inside(spool, file))
        place.bucket.put(place.key(step / MANIFEST), manifest)
        shutil.rmtree(spool.parent)

    def _needed(self, name: str) -> bool:
        """Return whether the step is pinned, or a newer incarnation exists. Only the newest incarnation may delete steps."""
        place = self.place
        pinned = place.bucket.get(place.key(place.run / RunFile.RESUME))
        if pinned is not None and parse(ResumePoint, pinned).path == f"{place.run.name}/{place.folder.name}/{name}":
            return True
        begun = {key.partition("/")[0] for key in place.bucket.list(f"{place.key(place.run)}/{incarnation_folder('')}")}
        return any(number.isdigit() and int(number) > place.incarnation for number in begun)

    def _delete(self, name: str) -> None:
        bucket, step = self.place.bucket, self.place.key(self.place.folder / name)
        bucket.delete(f"{step}/{MANIFEST}")
        for rest in bucket.list(f"{step}/"):
            bucket.delete(f"{step}/{rest}")

    def _artifacts(self) -> None:
        place, root = self.place, self.place.artifacts.root
        names = {path.name for path in (root / "names").glob("[!.]*")} - self._names  # list names first, so that their content exists
        for path in sorted((root / "sha256").glob("*/[!.]*")):
            if path.name not in self._content:
                place.send(path, path.name)
                self._content.add(path.name)
        for name in sorted(names):
            path = root / "names" / name
            place.bucket.put_new(place.key(path), path.read_bytes())
            place.bucket.put(place.key(place.run.parent / NAMES / name), b"")
            self._names.add(name)

    def outcome(self) -> Outcome | None:
        """Return the outcome that the job reported, or None if it has not ended."""
        ended = read_json(self.place.folder / IncarnationFile.ENDED)
        return Outcome(ended["outcome"]) if ended else None

    def upload_end_marker(self) -> None:
        """Upload the end marker from the gang's first pod. Nothing is uploaded after it."""
        ended = self.place.folder / IncarnationFile.ENDED
        if self.place.node == 0 and ended.exists():
            self.place.bucket.put(self.place.key(ended), ended.read_bytes())


def _saved(line: bytes) -> str:
    """Return the step folder of a checkpoint event, or an empty string for any other line."""
    with suppress(ValidationError):
        if b'"checkpoint"' in line and (event := JobEvent.model_validate_json(line)).kind == "checkpoint":
            return step_folder(event.step)
    return ""
