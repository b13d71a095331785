"""Runs `ratchet` commands as processes, in an environment without the settings of the machine that runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.warm import Warm

WARM: Warm | None = None
"""The process from which commands start with loaded libraries. `tests/conftest.py` sets it."""
ROOT = Path(__file__).resolve().parents[1]
RATCHET = (sys.executable, "-m", "ratchet.flows.cli.main")
"""The command `ratchet` of this checkout."""


def environment(home: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a command on this home folder: that of the tests without Prefect's and Ratchet's variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "RATCHET_"))}
    path = os.pathsep.join(filter(None, [str(ROOT), inherited.get("PYTHONPATH")]))
    return {**inherited, "PYTHONPATH": path, "RATCHET_HOME": str(home), "COLUMNS": "200", **variables}


def ratchet(
    *arguments: str | Path, home: Path, cwd: Path = ROOT, timeout: float = 240, fresh: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a `ratchet` command to its end and return its exit code and output.

    `variables` are added to its environment. The command is forked from the warm process, or has an interpreter of its own if `fresh`.
    """
    command = [*RATCHET, *map(str, arguments)]
    if WARM is not None and not fresh:
        return WARM.run(command, cwd, environment(home, **variables), timeout)
    return subprocess.run(
        command, cwd=cwd, env=environment(home, **variables), capture_output=True, text=True, timeout=timeout, check=False
    )
