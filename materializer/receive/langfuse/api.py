"""The source of Langfuse's public API: reads one slice of time after another, first its observations, then its scores.

A slice is written into the folder of the source before it is delivered, readable for its owner only, and deleted when the lake has it. Then
the cursor moves to its end. The last hour is read again each time, because observations arrive late; known records count as duplicates.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

from ratchet.contracts.data.datasets import RawBatch, Unread
from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.ids import Digest
from ratchet.materializer.dialects.exports.langfuse_export import SCORE, ScoreMeaning, observation_of, score_of
from ratchet.materializer.receive.files.streams import line_of
from ratchet.materializer.receive.langfuse.client import LangfuseClient
from ratchet.materializer.receive.langfuse.generations import Generations

_SLICE = timedelta(days=1)
_AGAIN = timedelta(hours=1)
"""Part of the past that is read again."""
_SETTLED = timedelta(minutes=5)
"""Age from which on observations are read. Younger calls may still run."""
_EVERY = timedelta(minutes=15)
"""Least time between two reads. The service asks its sources every half minute."""
_MOST = 512 << 20
"""Bytes of slices that one ingest delivers. The next one goes on."""
_LARGEST = 4 << 30
"""Bytes of a slice from which on the answers of the server are taken for endless."""
_KEYS = ("consent", "consent_time", "region", "confidentiality", "slice", "reference", "tools", "attributes")
"""Keys of metadata that Langfuse must not cut to 200 characters."""


class LangfuseApi:
    """Delivers what the API of a project has, from `since` on."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], LangfuseClient],
        state: Path,
        meanings: Mapping[str, ScoreMeaning],
        since: datetime | None,
        expand: Iterable[str] = (),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name = name
        self.unread: list[Unread] = []
        self._connect, self._state, self._meanings, self._since, self._now = connect, state, meanings, since, now
        self._expand = ",".join(dict.fromkeys((*_KEYS, *expand)))
        self._generations = Generations(state)
        self._slices: dict[Digest, tuple[Path, datetime, datetime]] = {}
        """The slices that the lake does not have yet: digest -> (file, begin, end)."""
        self._delivered: datetime | None = None
        """The latest end of a slice that the lake has."""
        self._until: datetime | None = None
        """Where the cursor stands."""

    def batches(self) -> Iterator[RawBatch]:
        """Yield a batch per slice of time. Raises ConfigError if the server refuses the keys, Retryable if it does not answer."""
        last = self._now() - _SETTLED
        begin, is_first = self._begin(last)
        if not is_first and last - begin < _EVERY:
            return
        folder, size = self._state / "slices", 0
        shutil.rmtree(folder, ignore_errors=True)  # what an interrupted ingest has left is read again
        folder.mkdir(parents=True, mode=0o700)
        self._slices.clear()
        self._delivered, self._until = None, begin
        client = self._connect()
        try:
            while begin < last and size < _MOST:
                end = min(begin + _SLICE, last)
                path = folder / begin.strftime("%Y-%m-%dT%H-%M-%S.%f.jsonl")
                content = self._write(client, path, begin - _AGAIN, end)
                size += path.stat().st_size
                identity = hashlib.sha256(f"{begin.isoformat()} {end.isoformat()} {content}".encode()).hexdigest()  # empty slices differ
                batch = RawBatch(self.name, "langfuse", identity, f"{self.name}/{path.name}", _opener(path))
                self._slices[batch.digest] = path, begin, end
                yield batch
                begin = end
        finally:
            client.close()

    def look(self, most: int) -> tuple[int, list[Unread]]:  # noqa: ARG002 -- the API has no files
        """Return (1, no file), without a request. Raises ConfigError if a key is missing."""
        self._connect().close()
        return 1, []

    def _begin(self, last: datetime) -> tuple[datetime, bool]:
        """Return (the time from which on is to be read, whether nothing was read before)."""
        try:
            return datetime.fromisoformat(json.loads((self._state / "cursor.json").read_text())["until"]), False
        except FileNotFoundError:
            return self._since or last - timedelta(days=30), True
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"source {self.name!r}: {self._state / 'cursor.json'} is damaged; delete it to read from `since` on"
            ) from error

    def _write(self, client: LangfuseClient, path: Path, begin: datetime, end: datetime) -> Digest:
        """Write the prepared rows of a slice. Return the digest of the file."""
        whole, size = hashlib.sha256(), 0
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            for record in self._records(client, begin, end):
                line = line_of(record)
                whole.update(line)
                size += len(line)
                if size > _LARGEST:
                    raise Retryable(f"source {self.name!r}: one day has more than {_LARGEST >> 30} GiB; use the blob export instead")
                file.write(line)
        return whole.hexdigest()

    def _records(self, client: LangfuseClient, begin: datetime, end: datetime) -> Iterator[Any]:
        for page in client.observations(begin, end, self._expand):
            found = [observation_of(row, None) if isinstance(row, dict) else row for row in page]
            self._generations.add([row for row in found if isinstance(row, dict)])
            yield from found
        for page in client.scores(begin, end):
            for row in page:
                yield {SCORE: self._about(score_of(row, self._meanings))} if isinstance(row, dict) else row

    def _about(self, score: dict[str, Any]) -> dict[str, Any]:
        if score["becomes"] == "none" or score["observationId"] is not None or score["traceId"] is None:
            return score
        return score | {"observationId": self._generations.before(str(score["traceId"]), score["time"])}

    def done(self, batch: RawBatch) -> None:
        """Delete the slice and move the cursor to its end, but never past a slice that the lake does not have, nor backwards."""
        found = self._slices.pop(batch.digest, None)
        if found is None:
            return
        path, _, end = found
        self._delivered = max(end, self._delivered or end)
        until = min([self._delivered, *(begin for _, begin, _ in self._slices.values())])
        if self._until is None or until > self._until:
            new = self._state / "cursor.json.new"
            new.write_text(json.dumps({"until": until.isoformat()}))
            new.replace(self._state / "cursor.json")
            self._until = until
        path.unlink(missing_ok=True)


def _opener(path: Path) -> Callable[[], BinaryIO]:
    return lambda: path.open("rb")
