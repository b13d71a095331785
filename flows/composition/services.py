"""Starts and stops the long-lived processes: receiver, router, model servers and Prefect server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ratchet.contracts.errors import RatchetError
from ratchet.contracts.ids import canonical
from ratchet.contracts.loop import Loop
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.reconcile import wanted_versions
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.serving.exchange import is_in_pods

if TYPE_CHECKING:
    from ratchet.local.line_process import LineProcess
    from ratchet.local.service import ManagedProcess


def start_receiver(loop: Loop, home: Home) -> str:
    """Let the OTLP/HTTP receiver serve a line unless it does, and return the base URL. Starts the receiver process if it does not run.

    The port is stored and reused after a restart, so that senders keep their configuration. Raises Permanent if it is taken. In an
    installation in pods, the receivers are pods, and nothing is started.
    """
    if is_in_pods():
        open_credentials(home, loop.line.name).ensure_router()
        return address_in_cluster(loop.line.name)
    from ratchet.materializer.receive.settings import ReceiverLine

    name, kept, process = loop.line.name, home.receiver_port(loop.line.name), receiver_process(home)
    known = int(kept.read_bytes()) if kept.exists() else 0
    port = process.port(name)
    if port is None:
        home.spool(name).mkdir(parents=True, exist_ok=True)
        open_credentials(home, name).ensure_router()
        base = process.settings
        settings = ReceiverLine(
            port=loop.serving.receiver_port or known,
            spool=os.path.relpath(home.spool(name), base),
            credentials=os.path.relpath(home.credentials(name), base),
        )
        port = process.serve(name, settings)
    if port != known:
        write_atomic(kept, canonical(port))
    return f"http://127.0.0.1:{port}"


def address_in_cluster(line: str) -> str:
    """Return the address of a line's receivers, for messages."""
    given = os.environ.get(variables.RECEIVER_URL, "").split()
    one = next((address for address in given if "://" in address.partition("=")[0]), "the receivers of the cluster")
    return dict(pair.split("=", 1) for pair in given if "://" not in pair.partition("=")[0]).get(line, one)


def receiver_is_alive(line: str, home: Home) -> bool:
    """Return whether the receiver runs and serves the line. The cluster keeps receivers in pods alive."""
    if is_in_pods():
        return True
    return receiver_process(home).port(line) is not None


def receiver_process(home: Home) -> LineProcess:
    """Return the handle of the installation's receiver process."""
    from ratchet.local.line_process import LineProcess
    from ratchet.materializer.receive.settings import DRAIN_SECONDS

    return LineProcess(home.receiver_process, ["-m", "ratchet.materializer.receive.receiver", "--folder"], DRAIN_SECONDS)


def stop_line(context: LineContext, home: Home) -> list[str]:
    """Stop what answers for a line: router, model servers and receiver. Return one text per service that was stopped.

    The router stops first. It finishes its answers, for which it needs the model servers, and then sends its traces to the receiver.
    The router process and the receiver process end with their last line.
    """
    stopped = []
    if context.router.read(context.line) is not None:
        stopped.append(f"the router of {context.line}")
    context.router.stop()
    running = [endpoint.tag for endpoint in context.server.running()]
    for tag in [*running, *(_starting(context) - set(running))]:
        context.server.stop(tag)
        if tag in running:
            stopped.append(f"the model server of {tag}")
    if receiver_process(home).remove(context.line):
        stopped.append(f"the receiver of {context.line}")
    return stopped


def _starting(context: LineContext) -> set[str]:
    """Return the versions whose servers may be about to start: one that loads is not among the running ones, and would stay."""
    try:
        line = context.line_view()
        cycle = context.cycle_view(line.open_cycle) if line.open_cycle else None
    except RatchetError:  # the servers that run can be stopped without the ledger
        return set()
    return {version.tag for version in [*wanted_versions(line, cycle), *([cycle.start] if cycle is not None else [])]}


PREFECT_SERVER = "server"
"""Name of the Prefect server's process folder, below RATCHET_HOME/prefect."""


def prefect_server(home: Home, command: Sequence[str], environment: Mapping[str, str]) -> ManagedProcess:
    """Return the handle of the installation's Prefect server process. `command` and `environment` are used only to start it."""
    from ratchet.local.service import ManagedProcess

    return ManagedProcess(home.prefect / PREFECT_SERVER, command, environment)


def announce_service(port: int) -> None:
    """Announce that this long-lived process answers on `port`. The process itself calls this when it is ready."""
    from ratchet.runtime.serving.announcement import announce

    announce(port)
