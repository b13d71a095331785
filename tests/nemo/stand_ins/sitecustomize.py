"""Lets every process of a NeMo RL run (driver, Ray workers, actors) do its GPU work on the CPU. No file of the release is edited.

Python imports this module at its start, because its folder is on `PYTHONPATH`. It does nothing without `NEMO_STAND_INS=1`. Each stand-in of
`cpu_stand_ins.py` is applied directly after the module that it changes has been executed.
"""

from __future__ import annotations

import os
import sys

if os.environ.get("NEMO_STAND_INS") == "1":
    import importlib.abc
    import importlib.util
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    if sys.version_info < (3, 12):  # the release's schema needs the newer TypedDict; its own images have Python 3.13
        import typing

        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict  # type: ignore[misc]

    from cpu_stand_ins import STAND_INS

    class _Loader(importlib.abc.Loader):
        """Executes a module with its own loader, and then applies the stand-in."""

        def __init__(self, own: Any, name: str) -> None:
            self.own, self.name = own, name

        def create_module(self, spec: ModuleSpec) -> ModuleType | None:
            return self.own.create_module(spec)  # type: ignore[no-any-return]

        def exec_module(self, module: ModuleType) -> None:
            self.own.exec_module(module)
            STAND_INS[self.name](module)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.own, name)

    class _Finder(importlib.abc.MetaPathFinder):
        """Finds the modules that have a stand-in."""

        def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
            if name not in STAND_INS:
                return None
            sys.meta_path.remove(self)
            try:
                spec = importlib.util.find_spec(name)
            finally:
                sys.meta_path.insert(0, self)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, name)
            return spec

    sys.meta_path.insert(0, _Finder())
