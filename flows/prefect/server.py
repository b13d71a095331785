"""The Prefect server of an installation: its settings, its address, its login and its process.

The server is a separate long-lived process that uses SQLite and listens on loopback. It is found again after a crash of the service.
Its API requires a login, because everybody who can call the API can answer approvals. The login is a file in the home folder, readable
only by the operator. Only the server process itself imports Prefect, so reading the address stays fast.
"""

from __future__ import annotations

import argparse
import base64
import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from importlib.metadata import version

import httpx

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.ids import canonical
from ratchet.flows.composition.services import PREFECT_SERVER, announce_service, prefect_server
from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.certificates import certificates
from ratchet.runtime.telemetry import NO_TELEMETRY

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
"""The host names under which the server answers. Another name in a request's Host header is the sign of DNS rebinding."""
_PORT_FILE = "port"
_BUSY_TRIES = 10
"""Attempts, one per second, while the API answers with HTTP 5xx, for example because SQLite is busy."""


def known_url(home: Home) -> str | None:
    """Return the API's base URL, ending in `/api`, or None if no server is known.

    The URL is PREFECT_API_URL if the user has set it. Otherwise it is the address of this installation's server while its process runs.
    """
    if is_external():
        return os.environ["PREFECT_API_URL"].rstrip("/")
    ready = prefect_server(home, (), {}).ready()
    return _url(int(ready["port"])) if ready else None


def is_external() -> bool:
    """Return whether the user set PREFECT_API_URL to a server that Ratchet must not start or stop."""
    return bool(os.environ.get("PREFECT_API_URL")) and not os.environ.get(variables.PREFECT_OWN)


def _url(port: int) -> str:
    return f"http://{HOST}:{port}/api"


def api_is_healthy(url: str) -> bool:
    """Return whether the API's health endpoint answers with status 200 within 3 seconds."""
    try:
        return httpx.get(f"{url}/health", timeout=3, trust_env=False, verify=certificates(url)).status_code == 200
    except httpx.HTTPError:
        return False


def authorization(home: Home) -> dict[str, str]:
    """Return the HTTP headers with which a request logs in to the Prefect API.

    The login of an external server is the user's own: PREFECT_API_KEY, or PREFECT_API_AUTH_STRING. Without them there are no headers.
    """
    if is_external():
        key, login = os.environ.get("PREFECT_API_KEY"), os.environ.get("PREFECT_API_AUTH_STRING")
        if key:
            return {"Authorization": f"Bearer {key}"}
        return {"Authorization": _basic(login)} if login else {}
    return {"Authorization": _basic(home.prefect_login().read_text())}


def _basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def _answers(url: str, headers: Mapping[str, str]) -> bool:
    """Return whether the API answers a request with these headers, as opposed to 401 or 403.

    Raises Retryable if the API is overloaded, and ConfigError if it is not the API of a Prefect server.
    """
    status = 0
    for _ in range(_BUSY_TRIES):
        try:
            asked = httpx.post(
                f"{url}/flow_runs/count", json={}, headers=dict(headers), timeout=30, trust_env=False, verify=certificates(url)
            )
            status = asked.status_code
        except httpx.HTTPError as error:
            raise Retryable(f"the Prefect server at {url} stopped responding ({type(error).__name__})") from error
        if status < 500:
            break
        time.sleep(1.0)
    if status in (401, 403):
        return False
    if status == 200:
        return True
    if status >= 500:
        raise Retryable(f"the Prefect server at {url} answers with HTTP {status}")
    raise ConfigError(f"{url} is not the API of a Prefect server (flow_runs/count answers with HTTP {status}); correct PREFECT_API_URL")


def check_login(home: Home, url: str) -> None:
    """Raise ConfigError if an external server accepts requests without a login, or rejects the user's login.

    The operator can accept an open server by a setting, because its owner may protect it in another way, for example in its network.
    Raises Retryable if the server does not respond.
    """
    if _answers(url, {}):
        if os.environ.get(variables.PREFECT_OPEN) != "accept":
            raise ConfigError(
                f"the Prefect server at PREFECT_API_URL = {url} answers without a login, so everybody who reaches it can answer approvals; "
                f"set PREFECT_SERVER_API_AUTH_STRING on that server, or accept it here with {variables.PREFECT_OPEN}=accept"
            )
    elif not _answers(url, authorization(home)):
        raise ConfigError(
            f"the Prefect server at PREFECT_API_URL = {url} rejects the login; set PREFECT_API_AUTH_STRING (user:password) or "
            "PREFECT_API_KEY"
        )


def join_or_start(home: Home, port: int = 0) -> str:
    """Return the base URL of a healthy API that requires a login; start the installation's server if necessary.

    `port` 0 reuses the previous port, or a free one. An external server may be away: the lines are served without it, and `check_login`
    must be called when it responds. Raises ConfigError if the port is in use, if the server already runs on another port, or if an external
    server answers without a login or rejects the login.
    """
    if is_external():
        url = str(known_url(home))
        if api_is_healthy(url):
            check_login(home, url)
        return url
    running = prefect_server(home, (), {}).ready()
    if running is None:
        return _start(home, port)
    if port and port != running["port"]:
        raise ConfigError(
            f"this installation's Prefect server already runs on port {running['port']}; omit --port, or stop the server with "
            "`ratchet serve --stop LOOP.toml`"
        )
    return _url(int(running["port"]))


def _start(home: Home, port: int) -> str:
    """Start the server on `port` if it is not 0, else on the previous port, else on a free port."""
    ensure_it_can_schedule(version("prefect"), version("sqlalchemy"))
    chosen = port or _kept_port(home) or _free_port()
    ensure_free(chosen)
    # Keep the user's own Prefect settings, for example the database URL.
    theirs = {name: value for name, value in os.environ.items() if name.startswith("PREFECT_")}
    ours = {name: os.environ[name] for name in (variables.LEDGER_URL,) if name in os.environ}
    environment = {
        **theirs,
        **settings(home, _url(chosen)),
        **ours,
        variables.HOME: str(home.root),
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(chosen),
        "PREFECT_SERVER_API_AUTH_STRING": home.prefect_login().read_text(),
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{name}:{chosen}" for name in NAMES),
        # A request, for example an answer in a form, fails with 503 if SQLite is busy for longer. The default is 10 seconds.
        "PREFECT_SERVER_DATABASE_TIMEOUT": "45",
    }
    command = ("-m", "ratchet.flows.prefect.server", "--port", str(chosen))
    ready = prefect_server(home, command, environment).ensure()
    write_atomic(home.prefect / _PORT_FILE, canonical(ready["port"]))
    return _url(int(ready["port"]))


def _kept_port(home: Home) -> int:
    try:
        return int((home.prefect / _PORT_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _free_port() -> int:
    with closing(socket.socket()) as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


def ensure_free(port: int) -> None:
    """Raise ConfigError if another process already listens on `port` of the loopback interface."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} on {HOST} is not available for the Prefect server ({error.strerror}); choose another with `--port`"
            ) from error


def ensure_it_can_schedule(prefect: str, sqlalchemy: str) -> None:
    """Raise ConfigError for package versions with which the server starts but never schedules a run.

    With these versions the scheduler fails, and the only sign is an error in the server's log.
    """
    if prefect.startswith("3.8.") and not sqlalchemy.startswith("2.0."):
        raise ConfigError(f"Prefect {prefect} cannot schedule runs on SQLAlchemy {sqlalchemy}: pip install 'sqlalchemy<2.1'")


def stop(home: Home) -> bool:
    """Stop the installation's Prefect server. Returns False if it was not running."""
    service = prefect_server(home, (), {})
    running = service.process() is not None
    service.stop()
    return running


def settings(home: Home, url: str) -> dict[str, str]:
    """Return Prefect's settings for every process of the installation, as environment variables.

    They must be set before Prefect is imported. Concurrency leases are stored on disk: leases in memory are lost when the server stops,
    and their slots would stay occupied permanently.
    """
    return {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_API_URL": url,
        "PREFECT_UI_API_URL": url,
        **NO_TELEMETRY,
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        "PREFECT_RUNNER_POLL_FREQUENCY": "2",
        "PREFECT_RUNNER_PROCESS_LIMIT": "16",
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": os.environ.get("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "WARNING"),
        **({} if is_external() else {variables.PREFECT_OWN: "1", "PREFECT_API_AUTH_STRING": home.prefect_login().read_text()}),
    }


def main() -> None:
    """Run the Prefect server in this process, on the port given by `--port`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    import uvicorn
    from prefect.server.api.server import create_app
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from ratchet.flows.prefect.report_pages import Confined, ReportPages

    home = Home.from_environment()
    pages = ReportPages(create_app(final=True), home, _basic(home.prefect_login().read_text()))
    app = TrustedHostMiddleware(Confined(pages, port, NAMES), allowed_hosts=list(NAMES), www_redirect=False)
    threading.Thread(target=_announce, args=(port,), daemon=True).start()
    uvicorn.run(app, host=HOST, port=port, log_level="warning", timeout_keep_alive=5)


def _announce(port: int) -> None:
    """Announce the service when the API responds. An open port is not sufficient, because database migrations run after it opens."""
    while not api_is_healthy(_url(port)):
        time.sleep(0.1)
    announce_service(port)


def wait_until_healthy(url: str, seconds: float) -> None:
    """Wait until the API responds. Raises Retryable after `seconds` seconds."""
    until = time.monotonic() + seconds
    while not api_is_healthy(url):
        if time.monotonic() > until:
            raise Retryable(f"the Prefect server at {url} does not respond; see its log in RATCHET_HOME/prefect/{PREFECT_SERVER}")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
