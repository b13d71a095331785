"""Code injection into trainer processes, for tests of failures.

A folder on PYTHONPATH has a `sitecustomize` that runs the test's code on one module, right after the import of that module, in the attempts
that the test names. The product has no such hook.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

HOOK = """
import importlib.abc, importlib.machinery, os, sys

class Meddler(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name != MODULE or os.environ.get("RATCHET_ATTEMPT") not in ATTEMPTS:
            return None
        self.spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        return importlib.machinery.ModuleSpec(name, self, origin=self.spec.origin)

    def exec_module(self, module):
        module.__file__ = self.spec.origin
        self.spec.loader.exec_module(module)
        exec(CODE, {"module": module})

sys.meta_path.insert(0, Meddler())
"""


def meddle(monkeypatch: pytest.MonkeyPatch, folder: Path, module: str, code: str, attempts: tuple[int, ...] = (1,)) -> None:
    """Run `code` after each import of `module`, in processes that start from now on. The code sees the module as `module`."""
    folder.mkdir(exist_ok=True)
    values = {"MODULE": module, "ATTEMPTS": tuple(map(str, attempts)), "CODE": textwrap.dedent(code)}
    (folder / "sitecustomize.py").write_text("".join(f"{name} = {value!r}\n" for name, value in values.items()) + HOOK)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
