"""Keeps the memory of the service flat over many cycles."""

from __future__ import annotations

import contextlib
import ctypes
import gc


def freeze_start() -> None:
    """Exclude what the start has loaded, about a million objects, from the search for garbage.

    Python searches all objects only when a quarter of them is new. With those of the start, cycles of clients and their TLS contexts would
    stay for hundreds of thousands of objects.
    """
    gc.collect()
    gc.freeze()


def give_back() -> None:
    """Delete garbage, and give free memory back to the system, which glibc otherwise keeps. Takes milliseconds."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # another C library has no such function
        ctypes.CDLL(None).malloc_trim(0)
