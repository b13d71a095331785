"""Keeps the memory of the service flat over many cycles."""

from __future__ import annotations

import contextlib
import ctypes
import gc

_M_ARENA_MAX = -8
"""Parameter of glibc's mallopt: the largest number of heaps."""


def settle_after_start() -> None:
    """Exclude what the start has loaded from the search for garbage, and let all threads share two heaps.

    Python searches all objects only when a quarter of them is new. With the objects of the start, cycles of clients and their TLS contexts
    would stay for a long time. Each run has threads of its own, and glibc would give each of them a heap whose free parts nobody else uses.
    """
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError, OSError):  # another C library has no such function
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def give_back() -> None:
    """Delete garbage, and give free memory back to the system, which glibc otherwise keeps. Takes milliseconds."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
