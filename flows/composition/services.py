"""Starts and stops the long-lived processes: receiver, router, model servers and Prefect server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from contracts.ids import canonical
from contracts.loop import Loop
from contracts.schema import SCHEMA_VERSION, UNVERSIONED
from flows.composition.credentials import open_credentials
from flows.config.home import Home
from flows.engine.context import LineContext
from runtime.artifacts import write_atomic

if TYPE_CHECKING:
    from local.service import ManagedProcess


def start_receiver(loop: Loop, home: Home) -> str:
    """Start the OTLP/HTTP receiver of a line unless it runs, and return its base URL.

    The port is stored and reused after a restart, so that senders keep their configuration.
    """
    home.spool(loop.line.name).mkdir(parents=True, exist_ok=True)
    kept = home.receiver(loop.line.name).with_name("receiver-port")
    port = loop.serving.receiver_port or (int(kept.read_bytes()) if kept.exists() else 0)
    open_credentials(home, loop.line.name).ensure_router()
    running = _receiver(loop, home, port).ready()
    if running is not None and int(running.get("schema_version", UNVERSIONED)) < SCHEMA_VERSION:
        _receiver(loop, home, port).stop()  # a receiver of an earlier release knows one token and no roles
    ready = _receiver(loop, home, port).ensure()
    write_atomic(kept, canonical(ready["port"]))
    return f"http://127.0.0.1:{ready['port']}"


def receiver_is_alive(loop: Loop, home: Home) -> bool:
    """Return whether the line's receiver runs and has announced its port."""
    return _receiver(loop, home).ready() is not None


def _receiver(loop: Loop, home: Home, port: int = 0) -> ManagedProcess:
    from local.service import ManagedProcess

    name = loop.line.name
    command = ["-m", "materializer.receive.receiver", "--spool", str(home.spool(name)), "--port", str(port)]
    command += ["--credentials", str(home.credentials(name))]
    return ManagedProcess(home.root / "lines" / name / "receiver", command, ready=home.receiver(name))


def stop_line(context: LineContext, home: Home) -> list[str]:
    """Stop every long-lived process of a line: router, model servers and receiver. Return one text per stopped process.

    The router stops first. It finishes its answers, for which it needs the model servers, and then sends its traces to the receiver.
    """
    stopped = []
    if context.router.read(context.line) is not None:
        stopped.append(f"the router of {context.line}")
    context.router.stop()
    for endpoint in context.server.running():
        context.server.stop(endpoint.tag)
        stopped.append(f"the model server of {endpoint.tag}")
    receiver = _receiver(context.loop, home)
    if receiver.process() is not None:
        receiver.stop()
        stopped.append(f"the receiver of {context.line}")
    return stopped


PREFECT_SERVER = "server"
"""Name of the Prefect server's process folder, below RATCHET_HOME/prefect."""


def prefect_server(home: Home, command: Sequence[str], environment: Mapping[str, str]) -> ManagedProcess:
    """Return the handle of the installation's Prefect server process. `command` and `environment` are used only to start it."""
    from local.service import ManagedProcess

    return ManagedProcess(home.prefect / PREFECT_SERVER, command, environment)


def announce_service(port: int) -> None:
    """Announce that this long-lived process answers on `port`. The process itself calls this when it is ready."""
    from local.service import announce

    announce(port)
