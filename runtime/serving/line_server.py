"""Serves all lines of an installation in one process, each on a port of its own.

Files state what the process serves (`runtime/serving/settings.py`). The process looks at them twice a second: it opens the ports of
new lines, and closes those of removed lines after the answers that have begun. An error in one line does not affect the others.

uvicorn is imported when the process starts to serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from ratchet.contracts.errors import Permanent, RatchetError
from ratchet.contracts.schema import parse, stamped
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.http_limits import App, Budgets, HttpLimits, LimitedApp, Refusal, json_refusal, with_deadlines
from ratchet.runtime.json_files import read_json
from ratchet.runtime.serving.announcement import announce, is_orphan
from ratchet.runtime.serving.settings import ANSWERS, LINES, ServedLine
from ratchet.runtime.watched_file import stamp_of

LOOK_SECONDS = 0.5
"""Seconds between two looks at the folder of the settings."""
WORK_SECONDS = 0.5
"""Seconds between two calls of `Site.work`."""
_RECENT_SECONDS = 0.1
"""A folder that changed so recently may change again without another time of change."""
ORPHAN_SECONDS = 3.0
"""Seconds that a new process waits until its starter has recorded it."""
_CANCEL_SECONDS = 5.0
"""Seconds for which cancelled answers may take to end."""
log = logging.getLogger("ratchet.lines")


class Site(Protocol):
    """What the process does for one line. All methods are called in the event loop."""

    app: App
    """The ASGI application that answers on the line's port."""

    def work(self) -> Sequence[Callable[[], None]]:
        """Do the regular work, every WORK_SECONDS; return at once. The results write files, and are called in a thread, one by one."""

    async def close(self) -> None:
        """End the work. Called after the last answer. From its first step on, `work` must do nothing."""


Settings = TypeVar("Settings", bound=ServedLine)


@dataclass(frozen=True)
class Kind(Generic[Settings]):
    """What a process serves."""

    name: str
    """Name of the process in error messages, for example `the router`."""
    remedy: str
    """What to do if a port is taken."""
    settings: type[Settings]
    open: Callable[[Settings, Path], Site]
    """Opens a line, given its settings and the folder in which relative paths start. May raise RatchetError or OSError."""
    drain: float
    """Seconds within which answers that have begun are finished when a line is removed or the process ends."""
    refusal: Refusal = json_refusal
    """Form of the answer to requests that a limit refuses."""


def bind(port: int, what: str, remedy: str, host: str = "127.0.0.1") -> socket.socket:
    """Return a listening socket on the address `host`; port 0 means any free port.

    Raises Permanent if the port is taken. `what` names the application in the message, and `remedy` is the advice in it.
    """
    # asyncio turns Nagle's algorithm off only for sockets whose protocol is named. With it, each answer whose head and body are sent apart
    # waits for the caller's delayed acknowledgement, which takes 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise Permanent(f"{what} cannot listen on {host}:{port}: {error.strerror}; {remedy}") from error
    return listener


def allow_files() -> int | None:
    """Raise the limit of open files to what the system allows, because each connection is one. Return the limit; None if there is none."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return None if most == resource.RLIM_INFINITY else most


@dataclass
class _Open:
    """A line whose port is open."""

    site: Site
    listener: asyncio.Server
    state: Any
    """uvicorn's ServerState: the connections and the running requests of this line."""
    port: int
    settings: ServedLine
    stamp: list[int]
    """Identity of the file from which the settings were read."""
    ending: asyncio.Task[None] | None = None
    """Finishes the answers and ends the work, after the line was removed."""


@dataclass
class _Lines:
    """The lines of the process by name."""

    open: dict[str, _Open] = field(default_factory=dict)
    closing: dict[str, _Open] = field(default_factory=dict)
    failed: dict[str, list[int]] = field(default_factory=dict)
    """Identity of the settings with which a line could not be opened."""


class LineServer(Generic[Settings]):
    """Serves the lines that the files in `folder` state."""

    def __init__(self, folder: Path, kind: Kind[Settings], limits: HttpLimits) -> None:
        self._settings = folder / LINES
        self._answers = folder / ANSWERS
        self._kind = kind
        self._lines = _Lines()
        self._seen: int | None = None
        self._budgets = Budgets(limits, allow_files())
        self._limits = limits
        self._worked = 0.0
        self._writing: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Then accept no connection, finish the answers that have begun, and return.

        Only the owner can read the files that the process writes.
        """
        if is_orphan(ORPHAN_SECONDS):
            return  # another process may be about to open the same ports
        os.umask(0o077)
        for folder in (self._settings, self._answers):
            folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(self._run())

    async def _run(self) -> None:
        import uvicorn
        from uvicorn.protocols.http.h11_impl import H11Protocol
        from uvicorn.server import ServerState

        self._new_state = ServerState
        app = LimitedApp(_of_the_line, self._limits, self._kind.refusal, self._budgets)
        self._http = with_deadlines(H11Protocol, self._limits, self._budgets)
        self._config = uvicorn.Config(app, http=self._http, ws="none", lifespan="off", log_level="warning", access_log=False)
        self._config.load()
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await self._look()
        announce()
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await stop.wait()
            await self._look()
            self._work()
        for name in list(self._lines.open):
            self._close(name, forget=False)  # the next process opens the same ports
        while self._lines.closing:
            await asyncio.sleep(0.05)
            self._work()
        if self._writing is not None:
            await self._writing

    async def _look(self) -> None:
        """Open and close lines as the files state. Costs one system call if nothing has changed."""
        try:
            changed = self._settings.stat().st_mtime_ns
            if changed == self._seen:
                return
            found = {path.stem: stamp_of(path) for path in self._settings.glob("*.json")}
        except OSError as error:  # for example a file that was removed after it was listed; the next look sees a newer state
            log.error("cannot look at %s: %s", self._settings, error.strerror)
            return
        self._seen = changed if time.time_ns() - changed > _RECENT_SECONDS * 1e9 else None
        for name in [name for name in self._lines.open if name not in found]:
            self._close(name)
        for name in [name for name in self._lines.failed if name not in found]:
            del self._lines.failed[name]
            self._forget(name)
        for name, stamp in found.items():
            opened = self._lines.open.get(name)
            if name in self._lines.closing:
                self._seen = None  # the line is opened again after its end
            elif opened is None and self._lines.failed.get(name) != stamp:
                await self._open(name, stamp)
            elif opened is not None and opened.stamp != stamp:
                self._change(name, opened, stamp)
        self._budgets.share_among(len(self._lines.open))

    def _change(self, name: str, opened: _Open, stamp: list[int]) -> None:
        """Follow settings that were written again. The line is opened anew if they have changed; otherwise only the reply is repeated."""
        try:
            if self._read(name) == opened.settings:
                opened.stamp = stamp
                self._reply(name, {"settings": stamp, "port": opened.port})
                return
        except (OSError, ValueError, RatchetError) as error:
            log.error("%s: %s: %s", name, type(error).__name__, error)
        self._close(name)
        self._seen = None

    def _read(self, name: str) -> Settings:
        return parse(self._kind.settings, (self._settings / f"{name}.json").read_bytes())

    async def _open(self, name: str, stamp: list[int]) -> None:
        """Open the port of a line, and reply. A problem becomes the line's error."""
        self._lines.failed.pop(name, None)
        try:
            opened = await self._opened(name, stamp)
        except Exception as error:  # also a defect in one line must not stop the others
            self._lines.failed[name] = stamp
            text = (
                str(error) if isinstance(error, RatchetError) else f"{self._kind.name} cannot serve {name}: {type(error).__name__}: {error}"
            )
            log.error("%s: %s", name, text)
            self._reply(name, {"settings": stamp, "error": text})
            return
        self._lines.open[name] = opened
        self._worked = 0.0  # its first files are written soon
        self._reply(name, {"settings": stamp, "port": opened.port})

    async def _opened(self, name: str, stamp: list[int]) -> _Open:
        settings = self._read(name)
        listener = bind(settings.port or self._former_port(name), self._kind.name, self._kind.remedy, settings.host)
        try:
            site, state = self._kind.open(settings, self._settings), self._new_state()
            state.default_headers = self._headers()
            server = await asyncio.get_running_loop().create_server(
                lambda: self._http(config=self._config, server_state=state, app_state={"line": name, "app": site.app}),
                sock=listener,
                backlog=512,
            )
        except BaseException:
            listener.close()
            raise
        return _Open(site, server, state, listener.getsockname()[1], settings, stamp)

    def _former_port(self, name: str) -> int:
        """Return the port of a line before the last end of the process; 0 if there was none."""
        with contextlib.suppress(ValueError, LookupError, TypeError):
            return int((read_json(self._answers / f"{name}.json") or {})["port"])
        return 0

    def _reply(self, name: str, content: dict[str, Any]) -> None:
        try:
            write_atomic(self._answers / f"{name}.json", stamped({"pid": os.getpid(), **content}))
        except RatchetError as error:  # the disk is full; whoever waits for the reply writes the settings again
            log.error("%s", error)

    def _forget(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._answers / f"{name}.json").unlink(missing_ok=True)

    def _close(self, name: str, forget: bool = True) -> None:
        """Close the port of a line, finish its answers in the background, and then delete the reply, unless `forget` is False."""
        opened = self._lines.closing[name] = self._lines.open.pop(name)
        opened.listener.close()
        for connection in list(opened.state.connections):
            connection.shutdown()

        async def finish() -> None:
            try:
                await _finished(opened.state, self._kind.drain)
                while self._writing is not None and not self._writing.done():  # its files would be older than those of `close`
                    await asyncio.wait({self._writing})
                await opened.site.close()
            except Exception:
                log.exception("cannot end the work for %s", name)
            finally:
                if forget:
                    self._forget(name)
                del self._lines.closing[name]

        opened.ending = asyncio.create_task(finish())

    def _work(self) -> None:
        """Let the lines do their regular work. One thread writes the files of all lines that have something new."""
        now = time.monotonic()
        if now - self._worked < WORK_SECONDS or (self._writing is not None and not self._writing.done()):
            return
        self._worked = now
        headers = self._headers()
        writes: list[Callable[[], None]] = []
        for name, opened in [*self._lines.open.items(), *self._lines.closing.items()]:
            opened.state.default_headers = headers
            try:
                writes += opened.site.work()
            except Exception:  # a defect in one line must not stop the others
                log.exception("cannot do the work for %s", name)
        if writes:
            self._writing = asyncio.create_task(asyncio.to_thread(_write_all, writes))

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"date", formatdate(usegmt=True).encode()), *self._config.encoded_headers]


async def _of_the_line(scope: Any, receive: Any, send: Any) -> None:
    """Pass a request to the application of its line."""
    await scope["state"]["app"](scope, receive, send)


async def _finished(state: Any, seconds: float) -> None:
    """Wait until all answers of a line are complete, at most `seconds`. Then cancel those that are left."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while state.connections or state.tasks:
                await asyncio.sleep(0.05)
    for task in list(state.tasks):
        task.cancel()
    if state.tasks:
        await asyncio.wait(list(state.tasks), timeout=_CANCEL_SECONDS)
    for connection in list(state.connections):
        connection.transport.abort()


def _write_all(writes: Sequence[Callable[[], None]]) -> None:
    errors: list[Exception] = []
    for write in writes:
        try:
            write()
        except Exception as error:  # for example a full disk; the next round writes again
            errors.append(error)
    if errors:
        log.error("%d of %d files were not written; the first: %s: %s", len(errors), len(writes), type(errors[0]).__name__, errors[0])
