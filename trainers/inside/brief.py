"""A process that loads torch or transformers begins and ends fast: when its garbage is collected, and how it leaves.

Imports make a million objects that stay. To look through them for garbage again and again while they come, and to take them apart
at the end, is more than a third of a short run. It knows nothing of what the process does.
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
    """Around all that the process does; its exit code is that of a SystemExit, 1 where anything else is raised, else 0.

    Nothing is collected until `loaded`. At the end all that was registered since is called; what is left the system frees at once.
    """
    gc.disable()
    code = [1]
    atexit.register(_leave, code)  # registered first, called last
    try:
        yield
    except SystemExit as end:
        code[0] = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    code[0] = 0


def loaded() -> None:
    """From here on garbage is collected, and what is there now is never looked at. In a process that is not `brief` nothing happens."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _leave(code: list[int]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code[0])
