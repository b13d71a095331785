"""The Prefect server of an installation: its settings, its address, and the process that it runs in.

It is one more long-lived process beside the service, on SQLite and loopback, found again after a crash. Nothing here imports
Prefect until the server process itself starts, so that asking for the address costs nothing. It refuses to know any flow.
"""

from __future__ import annotations

import argparse
import os
import socket
import threading
import time
from contextlib import closing
from importlib.metadata import version

import httpx

from contracts.errors import ConfigError, Retryable
from contracts.files import write_atomic
from contracts.ids import canonical
from flows.config.home import Home
from flows.engine.wiring import PREFECT_SERVER, announce_service, prefect_server

HOST = "127.0.0.1"
_PORT_FILE = "port"
OURS = "RATCHET_PREFECT_OWN"
"""Set beside PREFECT_API_URL where the address is one that we gave ourselves, not a person."""


def known_url(home: Home) -> str | None:
    """The API's base URL (…/api): PREFECT_API_URL, or that of this installation's server while its process lives."""
    if is_external():
        return os.environ["PREFECT_API_URL"].rstrip("/")
    ready = prefect_server(home, (), {}).ready()
    return _url(int(ready["port"])) if ready else None


def is_external() -> bool:
    """Whether PREFECT_API_URL names a server that is not ours to start or stop."""
    return bool(os.environ.get("PREFECT_API_URL")) and not os.environ.get(OURS)


def _url(port: int) -> str:
    return f"http://{HOST}:{port}/api"


def healthy(url: str) -> bool:
    """Whether the API answers."""
    try:
        return httpx.get(f"{url}/health", timeout=3, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def join_or_start(home: Home, port: int = 0) -> str:
    """The API's base URL, answering. ConfigError where the port is taken or an external server does not answer."""
    if is_external():
        url = str(known_url(home))
        if not healthy(url):
            raise ConfigError(f"PREFECT_API_URL is {url}, and nothing answers there; start that server, or unset it to have one started")
        return url
    running = prefect_server(home, (), {}).ready()
    if running is None:
        return _start(home, port)
    if port and port != running["port"]:
        raise ConfigError(
            f"this installation's Prefect server runs on port {running['port']}; leave --port out, or stop it with `ratchet serve --stop`"
        )
    return _url(int(running["port"]))


def _start(home: Home, port: int) -> str:
    """On the port that is asked for, else on that of the last time, else on a free one."""
    ensure_it_can_schedule(version("prefect"), version("sqlalchemy"))
    chosen = port or _kept_port(home) or _free_port()
    ensure_free(chosen)
    theirs = {name: value for name, value in os.environ.items() if name.startswith("PREFECT_")}  # a person's own settings: a database
    environment = {**theirs, **settings(home, _url(chosen)), "PREFECT_SERVER_API_HOST": HOST, "PREFECT_SERVER_API_PORT": str(chosen)}
    command = ("-m", "flows.prefect.server", "--port", str(chosen))
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
    """ConfigError where another process listens on `port`."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} of {HOST} is taken ({error.strerror}); the Prefect server needs one of its own: ratchet serve --port N"
            ) from error


def ensure_it_can_schedule(prefect: str, sqlalchemy: str) -> None:
    """ConfigError for versions with which the server comes up, and never schedules a run: it logs an error that nobody sees."""
    if prefect.startswith("3.8.") and not sqlalchemy.startswith("2.0."):
        raise ConfigError(f"Prefect {prefect} cannot schedule runs on SQLAlchemy {sqlalchemy}: pip install 'sqlalchemy<2.1'")


def stop(home: Home) -> bool:
    """Ends our server process; False where none ran."""
    service = prefect_server(home, (), {})
    running = service.process() is not None
    service.stop()
    return running


def settings(home: Home, url: str) -> dict[str, str]:
    """Prefect's settings for every process of the installation, as environment. Must be set before Prefect is imported.

    Leases lie on disk, because those in memory vanish with the server and would leave their slots taken for ever.
    """
    return {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_API_URL": url,
        "PREFECT_UI_API_URL": url,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        "PREFECT_RUNNER_POLL_FREQUENCY": "2",
        "PREFECT_RUNNER_PROCESS_LIMIT": "16",
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": os.environ.get("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "WARNING"),
        "DO_NOT_TRACK": "1",
        **({} if is_external() else {OURS: "1"}),
    }


def main() -> None:
    """The server process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    import uvicorn
    from prefect.server.api.server import create_app

    threading.Thread(target=_announce, args=(port,), daemon=True).start()
    uvicorn.run(create_app(final=True), host=HOST, port=port, log_level="warning", timeout_keep_alive=5)


def _announce(port: int) -> None:
    """Ready is when the API answers, not when the port is open: migrations come in between."""
    while not healthy(_url(port)):
        time.sleep(0.1)
    announce_service(port)


def wait_until_healthy(url: str, seconds: float) -> None:
    """Retryable if the API does not answer in time."""
    until = time.monotonic() + seconds
    while not healthy(url):
        if time.monotonic() > until:
            raise Retryable(f"the Prefect server at {url} does not answer; see its log below RATCHET_HOME/prefect/{PREFECT_SERVER}")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
