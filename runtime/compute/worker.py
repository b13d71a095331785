"""Process of `runtime/compute/processes.py`: calls a function for one item after the other.

It reads requests from standard input in a thread of its own. When the parent ends, also by SIGKILL, its end of the pipe is closed and this
process ends at once, in the middle of its work.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from queue import SimpleQueue
from typing import IO, Any

from ratchet.runtime.compute.attempt import Outcome, attempt
from ratchet.runtime.compute.frames import read_frame, write_frame
from ratchet.runtime.compute.installed import installed_code


def main() -> None:
    """Say which code is installed here, then answer requests. A request is a pickled pair of a pickled function and an item's content."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, and this process with it
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no reply
    write_frame(replies, 0, pickle.dumps(Outcome((dict(installed_code()), ""))))
    requests: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), daemon=True).start()
    while True:
        number, data = requests.get()
        function, content = pickle.loads(data)  # noqa: S301 -- from the process that has started this one
        outcome = attempt(function_of(function), content)
        del content, data
        write_frame(replies, number, pickle.dumps(outcome, protocol=5))


def _read(stream: IO[bytes], requests: SimpleQueue[tuple[int, bytes]]) -> None:
    while (frame := read_frame(stream)) is not None:
        requests.put(frame)
    os._exit(0)


@lru_cache(maxsize=8)
def function_of(pickled: bytes) -> Callable[[Any], Any]:
    """Return the function, which is the same object for the same bytes, so that it can keep what it has opened."""
    function: Callable[[Any], Any] = pickle.loads(pickled)  # noqa: S301 -- from the service
    return function


if __name__ == "__main__":
    main()
