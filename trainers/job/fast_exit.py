"""Faster start and exit of processes that load torch or transformers, by control of the garbage collector and the exit.

These imports create about a million permanent objects. Repeated garbage collection during the imports and their deallocation at the
exit take more than a third of a short run.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def brief() -> Iterator[None]:
    """Context manager for the whole work of a process.

    The exit code is that of a SystemExit, 1 for any other exception, otherwise 0. Garbage is not collected until `loaded` is
    called. At the exit, the registered atexit functions run, and then the process ends without deallocating its objects.
    """
    gc.disable()
    code = [1]
    atexit.register(_leave, code)  # atexit calls it last because it is registered first
    try:
        yield
    except SystemExit as end:
        code[0] = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    code[0] = 0


def loaded() -> None:
    """Start garbage collection and exempt all existing objects from it. Does nothing in a process that is not in `brief`."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _leave(code: list[int]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code[0])
