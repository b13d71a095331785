"""Tests the Prefect server's address and port, and the detection of runs without a process. No server is started."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.flows.prefect import server


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
    assert server.join_or_start(home) == "http://127.0.0.1:9/api", "the lines are served while it is away"
    with pytest.raises(Retryable, match="stopped responding"):
        server.check_login(home, "http://127.0.0.1:9/api")
    assert variables.PREFECT_OWN not in server.settings(home, "http://127.0.0.1:9/api")


class PrefectApi(BaseHTTPRequestHandler):
    """A stub of the Prefect API. `login` is the Authorization header that it requires; empty for none."""

    login = ""

    def do_GET(self) -> None:
        self.answer(200)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200 if self.headers.get("Authorization", "") == self.login or not self.login else 401)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def external(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an external Prefect server, which is set in the environment."""
    for name in ("PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", variables.PREFECT_OPEN):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), PrefectApi) as api:
        threading.Thread(target=api.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{api.server_port}/api"
        monkeypatch.setenv("PREFECT_API_URL", url)
        yield url
        api.shutdown()


@pytest.mark.slow
def test_external_server_without_a_login_is_refused_unless_it_is_accepted(
    home: Home, external: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"answers without a login.*RATCHET_PREFECT_OPEN=accept"):
        server.join_or_start(home)
    monkeypatch.setenv(variables.PREFECT_OPEN, "accept")
    assert server.join_or_start(home) == external


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "value", "header"),
    [("PREFECT_API_AUTH_STRING", "ada:secret", "Basic YWRhOnNlY3JldA=="), ("PREFECT_API_KEY", "pnu_1", "Bearer pnu_1")],
)
def test_external_server_gets_the_login_of_the_user(
    home: Home, external: str, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, header: str
) -> None:
    monkeypatch.setattr(PrefectApi, "login", header)
    with pytest.raises(ConfigError, match="rejects the login; set PREFECT_API_AUTH_STRING"):
        server.join_or_start(home)
    monkeypatch.setenv(variable, value)
    assert server.join_or_start(home) == external
    assert "PREFECT_API_AUTH_STRING" not in server.settings(home, external), "the user's own login stays"


def test_login_of_the_own_server_is_a_private_file(home: Home) -> None:
    login = home.prefect_login()
    assert login.stat().st_mode & 0o777 == 0o600
    assert login.read_text().startswith("ratchet:")
    assert server.settings(home, "http://127.0.0.1:9/api")["PREFECT_API_AUTH_STRING"] == login.read_text()
    assert server.authorization(home)["Authorization"].startswith("Basic ")


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


@pytest.mark.slow
def test_command_line_does_not_import_prefect() -> None:
    code = "import sys, ratchet.flows.cli.main, ratchet.flows.cli.serve, ratchet.flows.prefect.server; sys.exit('prefect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
