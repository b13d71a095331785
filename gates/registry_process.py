"""MLflow in a process of its own, which ends after a minute without a call.

MLflow takes 80 to 130 MB, is needed a few times per cycle, and cannot be unloaded. So the service does not load it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import RatchetError, Retryable
from ratchet.contracts.jobs.training import StepFigures
from ratchet.contracts.serving import ModelVersion
from ratchet.gates.registry import MlflowRegistry, stored_aliases

IDLE_SECONDS = 60.0
"""Seconds without a call after which the process ends."""


class ProcessRegistry:
    """`Registry` at an MLflow tracking URI, used by another process. Arguments and errors are those of `MlflowRegistry`."""

    def __init__(self, uri: str, folder: Path) -> None:
        self._uri = uri
        self._folder = folder

    def register(
        self,
        version: ModelVersion,
        folder: Path,
        tags: Mapping[str, str],
        metrics: Mapping[str, float],
        steps: Sequence[StepFigures] = (),
    ) -> str:
        """Register the version with its tags, metrics and training curves, once per version tag."""
        return str(self._call("register", version, folder, dict(tags), dict(metrics), list(steps)))

    def alias(self, line: str, alias: str, tag: str) -> None:
        """Set the alias of the line. Raises `Retryable` if the version is not registered yet."""
        self._call("alias", line, alias, tag)

    def describe(self, line: str, tag: str, card: str) -> None:
        """Replace the description of a version by its model card. Raises `Retryable` if the version is not registered yet."""
        self._call("describe", line, tag, card)

    def unalias(self, line: str, alias: str) -> None:
        """Remove an alias of the line. Does nothing if there is none."""
        self._call("unalias", line, alias)

    def aliases(self, line: str) -> dict[str, str]:
        """Return alias -> version tag. Returns an empty dictionary for an unknown line."""
        stored = stored_aliases(self._uri, line)
        return stored if stored is not None else dict(self._call("aliases", line))

    def _call(self, method: str, *arguments: Any) -> Any:
        return _worker().call(self._uri, self._folder, method, arguments)


class _Worker:
    """The process, started at the first call. It ends with its standard input, so that it survives no death of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: threading.Timer | None = None

    def call(self, uri: str, folder: Path, method: str, arguments: tuple[Any, ...]) -> Any:
        """Return what the method returns. Raises what it raises, and Retryable if the process died."""
        with self._lock:
            if self._end is not None:
                self._end.cancel()
            try:
                raised, answer = self._asked((uri, folder, method, arguments))
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                self._stop()
                raise Retryable("the process that uses the registry died; it is started again at the next try") from error
            self._end = threading.Timer(IDLE_SECONDS, self._close)
            self._end.daemon = True
            self._end.start()
        if raised:
            raise answer
        return answer

    def _asked(self, request: tuple[Any, ...]) -> tuple[bool, Any]:
        if self._process is None:
            self._process = subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        given, answers = self._process.stdin, self._process.stdout
        assert given is not None
        assert answers is not None
        pickle.dump(request, given)
        given.flush()
        raised, answer = pickle.load(answers)  # noqa: S301 -- from a process that this one has started
        return bool(raised), answer

    def _close(self) -> None:
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
            process.wait()


@lru_cache(maxsize=1)
def _worker() -> _Worker:
    """Return the worker that all lines of this process share."""
    return _Worker()


def main() -> None:
    """Answer calls of `MlflowRegistry` from standard input until it ends. A call is (URI, folder, name of the method, arguments)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, and this process with it
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what MLflow prints is no answer
    while True:
        try:
            uri, folder, method, arguments = pickle.load(sys.stdin.buffer)  # noqa: S301 -- from the process that has started this one
        except EOFError:
            return
        answer: tuple[bool, Any]
        try:
            answer = False, getattr(MlflowRegistry(uri, folder), method)(*arguments)
        except RatchetError as error:
            answer = True, error.with_traceback(None)
        except Exception as error:
            answer = True, Retryable(f"the registry failed: {type(error).__name__}: {error}")
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
