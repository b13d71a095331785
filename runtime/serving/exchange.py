"""The exchange: a bucket through which the pods of an installation on a cluster give each other small files.

`spool/LINE/NAME` is a request that a receiver has accepted and the service has not taken yet. `lines/LINE/DOCUMENT` is a document that the
service publishes, and that the receivers and routers of the line follow. `replicas/LINE/NAME` is the report of a replica of the router to
the service.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from pydantic import ValidationError

from ratchet.contracts.errors import ConfigError, RatchetError, Retryable
from ratchet.contracts.jobs.cluster import BucketSettings
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.bucket import Bucket
from ratchet.runtime.leading import term_of

EXCHANGE = "RATCHET_EXCHANGE"
"""Environment variable with the URL of the exchange, `s3://BUCKET/PREFIX`. The operator sets it in every pod of an installation."""
FOLLOW_SECONDS = 0.5
"""Seconds between two looks of a pod whether a document has changed."""
_AT_ONCE = 16
"""Requests to the bucket at the same time."""
_LIST_SHARE = 10
"""A listing of waiting requests that took some time is repeated after this many times as long."""
_PART = 256
"""Requests of the spool that are taken together."""
log = logging.getLogger("ratchet.exchange")


class Published(StrEnum):
    """A document of a line that the service publishes. The value is its name in the exchange."""

    ROUTE = "route.json"
    """The route in force."""
    ROUTER = "router.json"
    """Settings of the line's router."""
    CREDENTIALS = "credentials.json"
    """The receiver's credentials: roles, and digests of the tokens."""


class Exchange:
    """The exchange at an `s3://` URL. Every method raises Retryable while the bucket cannot be reached.

    Credentials follow the lookup order of the AWS SDK, and so do region and endpoint where they are None. Raises ConfigError for an invalid
    URL.
    """

    def __init__(self, url: str, endpoint: str | None = None, region: str | None = None) -> None:
        try:
            self._bucket = Bucket(BucketSettings(url=url, endpoint=endpoint, region=region))
        except ValidationError as error:
            raise ConfigError(f"{EXCHANGE}={url!r} is not a URL of the form s3://BUCKET/PREFIX; correct it") from error

    def publish(self, line: str, document: Published, content: bytes) -> None:
        """Put a document of a line in the place of the former one. Raises Fenced if another service has taken over the line."""
        self._bucket.put_in_term(_place(line, document), content, term_of(line))

    def newest_term(self, line: str) -> int:
        """Return the highest term in which a document of a line was published; 0 if none ever was."""
        return max(self._bucket.term(_place(line, document)) for document in Published)

    def installation(self, proposed: str) -> str:
        """Return the id of the installation. The first call stores the proposed one."""
        self._bucket.put_new("installation", proposed.encode())
        stored = self._bucket.get("installation")
        if stored is None:
            raise Retryable("the id of the installation was removed from the exchange meanwhile; try again")
        return stored.decode()

    def published(self, line: str, document: Published) -> bytes | None:
        """Return a document of a line; None if it was never published."""
        return self._bucket.get(_place(line, document))

    def changed(self, line: str, document: Published, tag: str) -> tuple[bytes, str] | None:
        """Return a document and its tag, if it has another tag than `tag`; None if it has not, or was never published."""
        return self._bucket.get_changed(_place(line, document), tag)

    def report(self, line: str, replica: str, account: bytes) -> None:
        """Replace the report of a replica of the router about a line."""
        self._bucket.put(f"replicas/{line}/{replica}", account)

    def reports(self, line: str) -> dict[str, tuple[bytes, datetime]]:
        """Return replica -> its account and the time at which the bucket got it."""
        listed = self._bucket.list(f"replicas/{line}/")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = pool.map(lambda replica: self._bucket.get(f"replicas/{line}/{replica}"), listed)
            return {name: (account, listed[name].modified) for name, account in zip(listed, found, strict=True) if account is not None}

    def accept(self, line: str, name: str, request: bytes) -> None:
        """Store a request. When this returns, the bucket has it."""
        self._bucket.put(f"spool/{line}/{name}", request)

    def waiting(self, line: str) -> dict[str, int]:
        """Return name -> size in bytes of the requests that were accepted and not removed, in the order of their names."""
        return {name: found.size for name, found in sorted(self._bucket.list(f"spool/{line}/").items())}

    def backlog(self, line: str) -> tuple[int, datetime | None]:
        """Return the number of waiting requests, and the time at which the bucket got the oldest one; None if none waits."""
        listed = self._bucket.list(f"spool/{line}/").values()
        return len(listed), min((found.modified for found in listed), default=None)

    def request(self, line: str, name: str) -> bytes | None:
        """Return a request; None if another process has removed it."""
        return self._bucket.get(f"spool/{line}/{name}")

    def remove(self, line: str, name: str) -> None:
        """Delete a request, which is stored elsewhere."""
        self._bucket.delete(f"spool/{line}/{name}")


def _place(line: str, document: Published) -> str:
    return f"lines/{line}/{document}"


class Follower:
    """Keeps files of a pod equal to published documents. Without the bucket, the files stay as they are.

    `files` maps (line, document) to the file.
    """

    def __init__(self, exchange: Exchange, files: Mapping[tuple[str, Published], Path]) -> None:
        self._exchange = exchange
        self._files = files
        self._tags: dict[tuple[str, Published], str] = {}
        self._stop = threading.Event()
        self._trouble = ""

    def start(self) -> None:
        """Follow in a thread, until the process ends or `stop` is called."""
        threading.Thread(target=self._run, name="follower", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()

    def look(self) -> bool:
        """Look once at each document, and write the files of those that have changed. Return whether that was possible for all.

        A failure is logged, once as long as it lasts.
        """
        trouble = ""
        for (line, document), path in self._files.items():
            try:
                found = self._exchange.changed(line, document, self._tags.get((line, document), ""))
                if found is not None:
                    content, tag = found
                    write_atomic(path, content)
                    self._tags[line, document] = tag
            except RatchetError as error:
                trouble = f"{line}/{document}: {error}"
            except Exception as error:  # a defect must not end the thread, because the pod would follow nothing any more
                trouble = f"{line}/{document}: {type(error).__name__}"
        if trouble and trouble != self._trouble:
            log.error("cannot follow %s; the last content stays in force", trouble)
        self._trouble = trouble
        return not trouble

    def _run(self) -> None:
        while not self._stop.wait(FOLLOW_SECONDS):
            self.look()


def is_in_pods() -> bool:
    """Return whether receivers and routers run in pods of their own, with which this installation has an exchange."""
    return bool(os.environ.get(EXCHANGE))


def open_exchange(url: str | None) -> Exchange:
    """Open the exchange of a pod. Raises ConfigError if `url`, the value of RATCHET_EXCHANGE, is missing or invalid."""
    if not url:
        raise ConfigError(f"{EXCHANGE} is not set; a pod of a cluster needs the bucket through which it reaches the service")
    return Exchange(url)


class Intake:
    """Copies requests of a line from the exchange to the spool `folder`, and deletes those that were ingested since.

    The exchange keeps a request until its file has left the spool, which happens after the lake has stored it. So no disk has the only copy
    of an acknowledged request. A crash in between delivers a request twice and never loses it.
    """

    def __init__(self, exchange: Exchange, line: str, folder: Path) -> None:
        self._exchange = exchange
        self._line = line
        self._folder = folder
        self._held = -1
        """Open descriptor of the folder. In another folder of its name, a missing file says nothing. While it is open, no other folder
        gets its inode.
        """
        self._copied: set[str] = set()
        """Names of the requests that are, or were, in the spool, and that the exchange still has."""
        self._pending: dict[str, int] = {}
        """Name -> bytes of the requests of the last listing that are not copied yet, the oldest first."""
        self._listed = float("-inf")
        self._took = 0.0
        """Monotonic time of the last listing, and its seconds."""

    def look(self, most_bytes: int) -> int:
        """Delete what was ingested and copy the oldest requests. Return the number of bytes that were copied.

        Copies none while the spool has `most_bytes` bytes, and at most 256 requests.
        """
        self._open()
        there = {path.name: path.stat().st_size for path in self._folder.iterdir() if path.is_file()}
        ingested = self._copied - there.keys()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self._remove, sorted(ingested)))
            if not self._pending:
                self._list(there.keys())
            size, chosen = sum(there.values()), list[str]()
            for name, bytes_ in self._pending.items():
                if size >= most_bytes or len(chosen) >= _PART:
                    break
                if "/" in name or name.startswith("."):
                    raise Retryable(f"the exchange has a request with the name {name!r}, which no receiver writes; remove the object")
                chosen.append(name)
                size += bytes_
            return sum(pool.map(self._copy, chosen))

    def _open(self) -> None:
        """Create the folder if it is missing, and forget what was copied to a former one."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._held >= 0 and os.path.samestat(os.fstat(self._held), self._folder.stat()):
            return
        if self._held >= 0:
            os.close(self._held)
        self._held, self._copied = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), set()

    def _list(self, there: Set[str]) -> None:
        """List what waits. A long listing is not repeated at once: requests that wait for an ingest are in it, too."""
        begun = time.monotonic()
        if begun - self._listed < _LIST_SHARE * self._took:
            return
        waiting = self._exchange.waiting(self._line)
        self._listed, self._took = begun, time.monotonic() - begun
        self._copied |= waiting.keys() & there  # those of a former process
        self._pending = {name: size for name, size in waiting.items() if name not in self._copied}

    def _remove(self, name: str) -> None:
        self._exchange.remove(self._line, name)
        self._copied.discard(name)

    def _copy(self, name: str) -> int:
        content = self._exchange.request(self._line, name)
        if content is not None:
            write_atomic(self._folder / name, content)
            self._copied.add(name)
        self._pending.pop(name, None)
        return 0 if content is None else len(content)
