"""Starts tests/crash/driver.py as processes, and reads their results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]


def start(*args: object, **environment: str) -> subprocess.Popen[str]:
    """Start tests/crash/driver.py as a process with these arguments and environment variables."""
    command = [sys.executable, "-m", "tests.crash.driver", *map(str, args)]
    return subprocess.Popen(command, cwd=REPO, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Wait for a driver process to succeed and return the results it printed."""
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def undisturbed(root: Path, marker: str = "") -> dict[str, Any]:
    """Run one cycle without a kill and return its result. `marker` is one of the driver's MARKERS; `bad_canary` ends with a rollback."""
    from tests.crash.driver import prepare, told

    prepare(root)
    if marker:
        (root / marker).touch()
    finished(start("live", root))
    life: dict[str, Any] = json.loads(json.dumps(told(root)))
    return life
