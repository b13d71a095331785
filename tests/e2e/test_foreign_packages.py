"""A user's own packages named `flows`, `local` and so on change nothing, neither on PYTHONPATH nor in the current folder.

`test_whole_loop.py` runs the demo beside such packages, with its service, jobs, model servers, router, receiver and Prefect server. The
tests of this module also cover the programs that run in pods.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.test_rules import SOURCES
from tests.command import ratchet
from tests.foreign_packages import NAMES, foreign_packages

pytestmark = pytest.mark.slow

PROGRAMS = sorted({name for path in SOURCES for name in re.findall(r'"-m", (?:f?)"(ratchet\.[\w.]+)"', path.read_text())})
"""The modules that the product starts as programs."""
TRAINERS = ("ratchet.trainers.job.trl.sft", "ratchet.trainers.job.nemo.__main__")
"""Programs whose names are computed."""


def test_the_programs_of_the_product_are_found() -> None:
    assert {"ratchet.trainers.job.supervisor", "ratchet.local.serve", "ratchet.trainers.job.pod_entrypoint"} <= set(PROGRAMS)


@pytest.mark.parametrize("program", [*PROGRAMS, *TRAINERS])
def test_a_program_loads_beside_foreign_packages(program: str, tmp_path: Path) -> None:
    folder = foreign_packages(tmp_path)
    code = f"import importlib, sys; importlib.import_module({program!r}); sys.exit(bool(set({NAMES!r}) & set(sys.modules)))"
    given = {**os.environ, "PYTHONPATH": str(folder)}
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder, env=given, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_commands_run_beside_foreign_packages(tmp_path: Path) -> None:
    folder = foreign_packages(tmp_path / "project")
    for words in (("--help",), ("init", "loop.toml", "--line", "support"), ("check", "loop.toml"), ("status",)):
        ran = ratchet(*words, home=tmp_path / "home", cwd=folder, fresh=True, PYTHONPATH=str(folder))
        assert ran.returncode == 0, f"{words}: {ran.stderr}"
