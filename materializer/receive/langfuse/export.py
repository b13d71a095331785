"""The source of Langfuse's blob export: joins traces to their observations, and scores to the generations that they are about.

A score on a trace is about the last generation of the trace that began before the score was given, because its answer is what the user saw.
Which generations a trace has is kept in the state of the source, as ids and times without content. A score that arrives before its
generation is skipped, and its file is read again when the generation is there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from ratchet.contracts.data.datasets import RawBatch, Unread
from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import Digest
from ratchet.materializer.dialects.exports.langfuse_export import (
    SCORE,
    UNCLEAR,
    ScoreMeaning,
    camel,
    observation_of,
    score_of,
    trace_fields,
)
from ratchet.materializer.receive.files.content import Content
from ratchet.materializer.receive.files.delivered import Delivered
from ratchet.materializer.receive.files.reading import content_of, rows_of
from ratchet.materializer.receive.files.storage import Storage, StoredFile, identity_of
from ratchet.materializer.receive.files.streams import line_of, stream_of
from ratchet.materializer.receive.langfuse.generations import Generations
from ratchet.materializer.receive.langfuse.layout import TABLES, Project, Ready, projects, readiness
from ratchet.runtime.moments import steady_time

_READ = ("lines", "json", "csv", "parquet")
_BACK = 48
"""Windows before that of an observation in which its trace is searched. A trace may begin long before its last observation."""


class BlobExport:
    """Delivers the files of the export, window by window: first the observations, then the scores."""

    def __init__(
        self, name: str, storage: Storage, state: Path, meanings: Mapping[str, ScoreMeaning], now: Callable[[], float] = steady_time
    ) -> None:
        self.name = name
        self.storage = storage
        self.unread: list[Unread] = []
        self._meanings = meanings
        self._now = now
        self._delivered = Delivered(state)
        self._generations = Generations(state)
        self._indexed: set[tuple[str, str]] = set()
        """Projects and windows up to which the generations are noted in this listing."""
        self._members: dict[Digest, list[StoredFile]] = {}

    def batches(self) -> Iterator[RawBatch]:
        """Yield the files that are new, have changed, or have scores whose generation has arrived.

        Raises ConfigError if the place does not exist, Retryable if it cannot be read.
        """
        try:
            found, self.unread = projects(self.storage.files())
            known = self._delivered.versions()
            self._indexed.clear()
            answered = self._generations.answered()
            for project in found:
                yield from self._project(project, known, answered)
        except OSError as error:
            raise Retryable(f"source {self.name!r}: {self.storage.place} cannot be read: {error}") from error

    def look(self, most: int) -> tuple[int, list[Unread]]:  # noqa: ARG002 -- the names of the files say enough
        """Return (number of files that would be read, the others). Raises like `batches`."""
        found, others = projects(self.storage.files())
        waiting, files = list[Unread](), 0
        for project in found:
            for window in project.windows():
                names = [project.tables[table][window].name for table in TABLES if window in project.tables[table]]
                why = readiness(project, window).why_not
                waiting += [Unread(name, why) for name in names if why]
                files += 0 if why else len(names)
        return files, others + waiting

    def _project(self, project: Project, known: Mapping[str, str], answered: Collection[str]) -> Iterator[RawBatch]:
        for window in project.windows():
            files = [(table, _with_trace(project, table, window)) for table in TABLES if window in project.tables[table]]
            fresh = [(table, file) for table, file in files if known.get(file.name) != file.version or file.name in answered]
            if not fresh or all(table == "traces" for table, _ in fresh):
                continue
            ready = readiness(project, window)
            if ready.why_not:
                self.unread += [Unread(file.name, ready.why_not) for _, file in fresh]
                continue
            for table, file in fresh:
                if table == "traces":
                    continue
                content = self._content_of(file)
                if content is None:
                    continue
                if table == "scores":
                    yield self._scores(project, window, file, content, ready)
                else:
                    yield self._observations(project, table, window, file, content, ready)

    def _content_of(self, file: StoredFile) -> Content | None:
        """Return what a file contains; None if it is not read now. It does not delay the others, and is tried again later."""
        before = self._delivered.unreadable().get(file.name)
        if before is not None and before.waits(file.version, self._now()):
            self.unread.append(Unread(file.name, before.why))
            return None
        try:
            content = content_of(file)
            if content.form in _READ:
                return content
            why = content.why
        except OSError as error:
            if not self.storage.remote:
                raise
            why = f"cannot be read: {error}"
        self.unread.append(Unread(file.name, why))
        self._delivered.add_unreadable(file, why, before, self._now())
        return None

    def _observations(self, project: Project, table: str, window: str, file: StoredFile, content: Content, ready: Ready) -> RawBatch:
        traces = project.before("traces", window, _BACK) if table == "observations" else []
        own = [one for one in traces if one is project.tables["traces"].get(window)]
        promised = ready.rows.get(table)
        identity = identity_of([file, *own], "langfuse observations")

        def lines() -> Iterator[bytes]:
            joined = _Traces(traces)
            with self._generations.writing(file) as note:
                for row in _counted(rows_of(file, content), promised):
                    if isinstance(row, bytes):
                        yield row
                    elif UNCLEAR in row:
                        yield line_of(row)
                    else:
                        trace = joined.of(row.get("trace_id") or row.get("traceId"))
                        record = observation_of(row, trace)
                        note(record)
                        yield line_of(record if trace is not None or not traces else _without_trace(record))

        return self._batch(RawBatch(self.name, "langfuse", identity, file.origin, lambda: stream_of(lines())), file)

    def _scores(self, project: Project, window: str, file: StoredFile, content: Content, ready: Ready) -> RawBatch:
        def prepared() -> Iterator[dict[str, Any] | bytes]:
            for row in _counted(rows_of(file, content), ready.rows.get("scores")):
                if isinstance(row, bytes) or UNCLEAR in row:
                    yield row
                else:
                    yield {SCORE: self._about(score_of(row, self._meanings), lambda: self._index(project, window))}

        waiting, answered = dict[str, Any](), []
        for record in prepared():
            score = record.get(SCORE) if isinstance(record, dict) else None
            if score and score["becomes"] != "none" and score["traceId"]:
                if score["observationId"]:
                    answered.append(str(score["observationId"]))
                else:
                    waiting[str(score["traceId"])] = score["time"]
        self._generations.wait(file.name, waiting)
        identity = identity_of([file], "langfuse scores", *answered)

        def opened() -> BinaryIO:
            return stream_of(row if isinstance(row, bytes) else line_of(row) for row in prepared())

        return self._batch(RawBatch(self.name, "langfuse", identity, file.origin, opened), file)

    def _about(self, score: dict[str, Any], index: Callable[[], None]) -> dict[str, Any]:
        """Return a score with the generation that it is about, if it is on a trace."""
        if score["becomes"] == "none" or score["observationId"] is not None or score["traceId"] is None:
            return score
        index()
        return score | {"observationId": self._generations.before(str(score["traceId"]), score["time"])}

    def _index(self, project: Project, window: str) -> None:
        """Note the generations of all observations up to a window that are not noted yet, also of those that were read before."""
        if (project.root, window) in self._indexed:
            return
        self._indexed.add((project.root, window))
        for table in ("observations_v2", "observations"):
            for one, file in sorted(project.tables[table].items()):
                if one <= window and not self._generations.has(file) and readiness(project, one).why_not is None:
                    content = content_of(file)
                    if content.form in _READ:
                        with self._generations.writing(_with_trace(project, table, one)) as note:
                            for row in _counted(rows_of(file, content), None):
                                if isinstance(row, dict):
                                    note(camel(row))

    def _batch(self, batch: RawBatch, file: StoredFile) -> RawBatch:
        self._members.setdefault(batch.digest, []).append(file)  # empty files are equal
        return batch

    def done(self, batch: RawBatch) -> None:
        """Remember that the lake has the file. The export itself is not changed."""
        if batch.digest in self._members:
            self._delivered.add(self._members.pop(batch.digest))


def _with_trace(project: Project, table: str, window: str) -> StoredFile:
    """Return a file whose version changes when the traces of its observations do."""
    file, traces = project.tables[table][window], project.tables["traces"].get(window)
    return replace(file, version=f"{file.version} {traces.version}") if table == "observations" and traces else file


class _Traces:
    """Finds the fields of traces in the files of the table, which are read one after another until the trace is found."""

    def __init__(self, files: list[StoredFile]) -> None:
        self._files = list(files)
        self._found: dict[str, dict[str, Any]] = {}

    def of(self, identity: Any) -> dict[str, Any] | None:
        """Return the fields of a trace; None if it is not there, or if the identity is no text."""
        if not isinstance(identity, str):
            return None
        while identity not in self._found and self._files:
            file = self._files.pop(0)
            for row in _counted(rows_of(file, content_of(file)), None):
                if isinstance(row, dict) and isinstance(row.get("id"), str):
                    self._found.setdefault(row["id"], trace_fields(row))
        return self._found.get(identity)


def _counted(rows: Iterator[dict[str, Any] | bytes], promised: int | None) -> Iterator[dict[str, Any] | bytes]:
    """Yield rows, and a report if the file is damaged or has another number of rows than its manifest promises."""
    count = 0
    try:
        for row in rows:
            count += 1
            yield row
    except EOFError as error:
        yield {UNCLEAR: {"reason": "damaged_file", "detail": str(error)}}
        return
    if promised is not None and count != promised:
        yield {UNCLEAR: {"reason": "count_mismatch", "detail": f"the manifest promises {promised} rows, the file has {count}"}}


def _without_trace(record: dict[str, Any]) -> dict[str, Any]:
    """Return what stands for an observation whose trace is missing: the trace may have the user, or a refusal of consent."""
    if record.get("type") != "GENERATION":
        return record
    return {UNCLEAR: {"reason": "missing_trace", "detail": f"the export has no trace {str(record.get('traceId'))[:64]!r}"}}
