"""Ports that are built at their first use, so that a command imports only what it uses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

T = TypeVar("T")


def made(build: Callable[[], T], late: bool, **known: Callable[[], Any]) -> T:
    """Return what `build` returns; with `late`, a stand-in that calls `build` when it is first used, and raises its errors then.

    `known` are methods of the object that the stand-in has itself, so that a call of them does not build it.
    """
    return cast(T, _Late(build, known)) if late else build()


class _Late:
    """Stands for an object, and builds it once, at its first use. Several threads may use it."""

    def __init__(self, build: Callable[[], Any], known: Mapping[str, Callable[[], Any]]) -> None:
        self.__build = build
        self.__known = known
        self.__lock = threading.RLock()
        self.__object: Any = None

    def __made(self) -> Any:
        with self.__lock:
            if self.__object is None:
                self.__object = self.__build()
            return self.__object

    def __getattr__(self, name: str) -> Any:
        return self.__known[name] if name in self.__known else getattr(self.__made(), name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__made())

    def __len__(self) -> int:
        return len(self.__made())

    def __getitem__(self, key: Any) -> Any:
        return self.__made()[key]

    def __contains__(self, item: object) -> bool:
        return item in self.__made()
