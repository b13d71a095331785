"""Imports libraries as if an installed package were missing, because they load it only where it is installed, and it is large."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from typing import Any


class _Missing(MetaPathFinder):
    def __init__(self, package: str) -> None:
        self._package = package
        self._thread = threading.get_ident()

    def find_spec(self, fullname: str, _path: Any = None, _target: Any = None) -> None:
        """Raise ModuleNotFoundError for the package in the thread that hides it."""
        if fullname == self._package and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{fullname} is not loaded here", name=fullname)


@contextmanager
def hidden(package: str) -> Iterator[None]:
    """Let this thread's imports of `package` fail inside the block, unless it is loaded already."""
    finder = _Missing(package)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
