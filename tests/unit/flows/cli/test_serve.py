"""Tests of how `ratchet serve --stop` ends the service."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from flows.cli.serve import _stop_serving
from flows.config.home import Home
from flows.prefect.service_lock import serving_process
from tests.waiting import until

SERVICE = """
import signal, subprocess, sys, time
from pathlib import Path
from flows.config.home import Home
from flows.prefect.service_lock import only_one
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
flow = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with only_one(Home(Path(sys.argv[1]))):
    print(flow.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["usual", "deaf"])
def test_stop_ends_the_service_also_if_it_does_not_react(tmp_path: Path, kind: str) -> None:
    service = subprocess.Popen([sys.executable, "-c", SERVICE, str(tmp_path), kind], stdout=subprocess.PIPE, text=True)
    assert service.stdout is not None
    flow = int(service.stdout.readline())
    installation: Any = SimpleNamespace(home=Home(tmp_path))
    stopped = _stop_serving(installation, seconds=0.5 if kind == "deaf" else 30)
    assert stopped == ["the service (with SIGKILL, because it still ran 0.5 s after SIGTERM)" if kind == "deaf" else "the service"]
    service.wait(10)
    assert serving_process(installation.home) is None
    if kind == "deaf":
        until(lambda: not psutil.pid_exists(flow) or psutil.Process(flow).status() == psutil.STATUS_ZOMBIE)
    else:
        psutil.Process(flow).kill()


def test_stop_without_a_service_stops_nothing(tmp_path: Path) -> None:
    installation: Any = SimpleNamespace(home=Home(tmp_path))
    assert _stop_serving(installation) == []
