"""Runs a replica of the router: `python -m ratchet.router.replica --help`. RATCHET_EXCHANGE is in its environment.

The folder is on the replica's volume. It has the spans that the receiver does not have yet, the counts, and the last route, so that a
replica that starts while the exchange is away answers by that route.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import click

from ratchet.contracts.errors import RatchetError
from ratchet.router.line import RouterSite
from ratchet.router.replica.announcer import Announcer
from ratchet.router.replica.control import serve_control
from ratchet.router.replica.state import LineFiles
from ratchet.router.settings import RouterLine
from ratchet.runtime.http_limits import HttpLimits
from ratchet.runtime.serving.exchange import EXCHANGE, FOLLOW_SECONDS, Follower, open_exchange
from ratchet.runtime.serving.line_server import Kind, LineServer
from ratchet.runtime.serving.pod_lines import ANY_ADDRESS, line_ports

CONFIRMED = "confirmed"
"""File whose time of change is when the exchange last confirmed the routes."""
END_SECONDS = 20.0
"""Seconds for which a replica that ends tries to report its last counts."""
log = logging.getLogger("ratchet.router")


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), required=True, help="Folder on the replica's volume.")
@click.option("--keys", type=click.Path(path_type=Path), required=True, help="Folder with LINE/router and LINE/span-keys.json.")
@click.option("--receiver", "host", required=True, metavar="HOST", help="DNS name of the receivers' Service.")
@click.option("--line", "lines", multiple=True, required=True, metavar="NAME=PORT", help="A line and its port; repeat for several.")
@click.option(
    "--receiver-line", "receivers", multiple=True, required=True, metavar="NAME=PORT", help="A line and its port of the receivers."
)
@click.option("--control-port", default=9000, show_default=True, help="Port for the kubelet and Prometheus.")
@click.option("--drain", default=600.0, show_default=True, help="Seconds within which answers are finished after SIGTERM.")
def main(folder: Path, keys: Path, host: str, lines: Sequence[str], receivers: Sequence[str], control_port: int, drain: float) -> None:
    """Answer for the lines until SIGTERM; then finish the answers, send the spans to the receiver, and report the last counts."""
    folder, ports = folder.absolute(), line_ports(receivers)
    served = [
        LineFiles(folder, keys.absolute(), f"http://{host}:{ports[name]}", name, port)
        for name, port in line_ports(lines).items()
        if name in ports
    ]
    if missing := line_ports(lines).keys() - ports.keys():
        raise click.UsageError(f"no --receiver-line for {', '.join(sorted(missing))}")
    _own(folder)
    exchange = open_exchange(os.environ.get(EXCHANGE))
    follower = Follower(exchange, {place: path for one in served for place, path in one.followed.items()})
    announcer, mark, stop = (
        Announcer(exchange, os.environ.get("HOSTNAME") or socket.gethostname(), served),
        folder / CONFIRMED,
        threading.Event(),
    )

    def look() -> None:
        if follower.look():
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        for one in served:
            try:
                one.settle()
            except (RatchetError, ValueError, OSError) as error:
                log.error("%s: cannot follow the published settings: %s", one.name, error)
        announcer.look(time.monotonic())

    def confirmed() -> float:
        return mark.stat().st_mtime if mark.exists() else 0.0

    def follow() -> None:
        while not stop.wait(FOLLOW_SECONDS):
            try:
                look()
            except Exception:  # the thread must go on, because the replica would follow nothing any more
                log.exception("cannot look at the exchange")

    look()
    follower_thread = threading.Thread(target=follow, name="follower", daemon=True)
    follower_thread.start()
    serve_control(served, confirmed, ANY_ADDRESS, control_port)
    remedy = "use another port in the values of the chart"
    LineServer(folder, Kind("the router", remedy, RouterLine, RouterSite, drain), HttpLimits()).run()
    stop.set()
    follower_thread.join(END_SECONDS)
    announcer.end(END_SECONDS)


def _own(folder: Path) -> None:
    """Wait until no other process uses the folder, and keep others out until this process ends.

    After a forced deletion, the former pod may still run when its successor starts. It would go on to append spans to files that the
    successor has sent and deleted.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / ".owner", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.warning("another process still uses %s; waiting for its end", folder)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # held until the process ends


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    main()
