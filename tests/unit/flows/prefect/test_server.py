"""Tests the Prefect server's address and port, and the detection of runs without a process. No server is started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.errors import ConfigError, Retryable
from contracts.ids import canonical
from flows.config import variables
from flows.config.home import Home
from flows.prefect import run_pidfiles, server
from runtime.artifacts import write_atomic


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in ("PREFECT_API_URL", variables.PREFECT_OWN):
        monkeypatch.delenv(name, raising=False)
    return Home(tmp_path)


def test_no_server_is_known_at_first(home: Home) -> None:
    assert server.known_url(home) is None
    assert server.stop(home) is False


def test_external_server_is_used_and_never_started(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api/")
    assert server.known_url(home) == "http://127.0.0.1:9/api"
    with pytest.raises(ConfigError, match="no Prefect server responds"):
        server.join_or_start(home)
    assert variables.PREFECT_OWN not in server.settings(home, "http://127.0.0.1:9/api")


def test_own_address_in_the_environment_is_not_external(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.settings(home, "http://127.0.0.1:9/api").items():
        monkeypatch.setenv(name, value)
    assert server.known_url(home) is None


def test_occupied_port_is_a_config_error(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ensure_it_can_schedule", lambda *_: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is not available"):
            server.join_or_start(home, port)


def test_incompatible_versions_are_rejected() -> None:
    server.ensure_it_can_schedule("3.8.8", "2.0.58")
    server.ensure_it_can_schedule("3.9.1", "2.1.9")
    with pytest.raises(ConfigError, match="pip install"):
        server.ensure_it_can_schedule("3.8.8", "2.1.9")


def test_telemetry_is_disabled(home: Home) -> None:
    settings = server.settings(home, "http://127.0.0.1:9/api")
    assert settings["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert settings["DO_NOT_TRACK"] == "1"
    assert settings["PREFECT_HOME"].startswith(str(home.root))


def test_run_has_a_process_while_its_flow_runs(home: Home) -> None:
    assert run_pidfiles.process_of(home, "one") is None
    with run_pidfiles.present(home, "one"):
        assert run_pidfiles.process_of(home, "one") is True
    assert run_pidfiles.process_of(home, "one") is None


def test_run_without_a_live_process_is_detected(home: Home) -> None:
    write_atomic(home.prefect / "runs" / "two.json", canonical({"pid": os.getpid(), "started": 1.0}))
    assert run_pidfiles.process_of(home, "two") is False
    run_pidfiles.forget(home, "two")
    assert run_pidfiles.process_of(home, "two") is None


def test_only_one_process_serves_an_installation(home: Home) -> None:
    assert run_pidfiles.serving_process(home) is None
    with run_pidfiles.only_one(home):
        process = run_pidfiles.serving_process(home)
        assert process is not None
        assert process.pid == os.getpid()
        with pytest.raises(Retryable, match="another `ratchet serve`"), run_pidfiles.only_one(home):
            pass
    assert run_pidfiles.serving_process(home) is None


def test_command_line_does_not_import_prefect() -> None:
    code = "import sys, flows.cli.main, flows.cli.serve, flows.prefect.server; sys.exit('prefect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
