"""A child process that answers numbered requests."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import pickle
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import IO

from ratchet.runtime.compute.attempt import value_of
from ratchet.runtime.compute.frames import read_frame, write_frame
from ratchet.runtime.compute.installed import refuse_other_code

_PIPE = 1 << 20
"""Bytes that a pipe holds, so that a large message needs few switches between the processes."""


class Lost(Exception):
    """A request gets no answer: the process has ended, or the request was cancelled. The message says which."""


class Child:
    """A process that reads requests from its standard input, and ends when that ends.

    Its first message, with the number 0, is an `Outcome`: the code that is installed there (`installed_code`) and a sentence about it.
    `what` names the process in messages.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], what: str) -> None:
        self._process = subprocess.Popen(command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._what = what
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._hello: Future[bytes] = Future()
        self._waiting: dict[int, Future[bytes]] = {0: self._hello}
        self._ended = ""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # the system limits the size
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process can answer."""
        return not self._ended and self._process.poll() is None

    def hello(self) -> str:
        """Wait until the process is ready, and return the sentence about it.

        Raises Lost if it has ended, ConfigError if it has other code than this process, and the error that it reports.
        """
        installed, about = value_of(pickle.loads(self._hello.result()), self._what)  # noqa: S301 -- from a process started here
        refuse_other_code(installed, self._what)
        return str(about)

    def ask(self, data: bytes) -> tuple[int, Future[bytes]]:
        """Send a request. Return its number, and its answer as a pickled `Outcome`, or Lost."""
        answer: Future[bytes] = Future()
        with self._lock:
            if self._ended:
                raise Lost(self._ended)
            number = next(self._numbers)
            self._waiting[number] = answer
            self._write(number, data)
        return number, answer

    def cancel(self, number: int) -> None:
        """Tell the process that nobody waits for the answer of a request any more, which is Lost. An answer may be on its way."""
        with self._lock:
            answer = self._waiting.get(number)
            if answer is not None:
                self._write(number, b"")
                _lose(answer, "the work was stopped")

    def kill(self) -> None:
        """End the process in the middle of its work, without waiting. What it was asked is Lost."""
        self._process.kill()

    def end(self, kill: bool = False) -> None:
        """End the process, and wait until it has ended. With `kill`, also in the middle of its work."""
        if kill:
            self.kill()
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()

    def _write(self, number: int, data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # the reader finds the end of the process, too
            write_frame(self._process.stdin, number, data)

    def _read(self, stream: IO[bytes]) -> None:
        while (frame := read_frame(stream)) is not None:
            number, data = frame
            with contextlib.suppress(InvalidStateError):  # cancelled
                self._waiting.pop(number).set_result(data)
        with contextlib.suppress(OSError):
            stream.close()
        self._ended = _how(self._process.wait())
        with self._lock:
            left, self._waiting = self._waiting, {}
        for answer in left.values():
            _lose(answer, self._ended)


def _lose(answer: Future[bytes], why: str) -> None:
    with contextlib.suppress(InvalidStateError):
        answer.set_exception(Lost(why))


def _how(status: int) -> str:
    return f"killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
