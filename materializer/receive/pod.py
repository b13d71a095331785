"""The receiver in a pod of a cluster: accepts requests of the lines, and stores each in the exchange before it answers 200.

Run: `python -m ratchet.materializer.receive.pod --folder FOLDER --line NAME=PORT …`, with RATCHET_EXCHANGE in the environment. The folder
needs no volume: credentials are published by the service, and requests stay in the bucket until the service takes them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ratchet.contracts.data.senders import Sender
from ratchet.contracts.errors import Retryable
from ratchet.contracts.schema import stamped
from ratchet.materializer.receive.credentials import CredentialFile
from ratchet.materializer.receive.receiver import create_app, refusal
from ratchet.materializer.receive.settings import DRAIN_SECONDS, ReceiverLine
from ratchet.materializer.receive.spool import ExchangeSpool
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.http_limits import App, HttpLimits
from ratchet.runtime.serving.exchange import EXCHANGE, Exchange, Follower, Published, open_exchange
from ratchet.runtime.serving.line_server import Kind, LineServer
from ratchet.runtime.serving.pod_lines import ANY_ADDRESS, line_ports
from ratchet.runtime.serving.settings import LINES


class PodReceiverSite:
    """A line whose senders the receiver serves. The name of its spool is that of the line."""

    def __init__(self, line: ReceiverLine, base: Path, exchange: Exchange) -> None:
        self._published = base / line.credentials
        self._credentials = CredentialFile(self._published)
        self.app: App = create_app(ExchangeSpool(exchange, line.spool), self._sender)

    def _sender(self, token: str) -> Sender | None:
        if not self._published.exists():
            raise Retryable("the receiver has not read the credentials of its senders yet")
        return self._credentials.sender(token)

    def work(self) -> Sequence[Callable[[], None]]:
        """Do nothing: a request is in the exchange when it is answered."""
        return ()

    async def close(self) -> None:
        """Do nothing."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the receiver until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m ratchet.materializer.receive.pod", description="OTLP/HTTP receiver of a cluster.")
    parser.add_argument("--folder", type=Path, required=True, help="folder for settings and credentials, which may be empty")
    parser.add_argument("--line", action="append", required=True, help="NAME=PORT of a line; repeat the option for several")
    given = parser.parse_args(arguments)
    folder, exchange = given.folder.absolute(), open_exchange(os.environ.get(EXCHANGE))
    files = {(name, Published.CREDENTIALS): folder / "credentials" / f"{name}.json" for name in line_ports(given.line)}
    for name, port in line_ports(given.line).items():
        credentials = os.path.relpath(files[name, Published.CREDENTIALS], folder / LINES)
        settings = ReceiverLine(port=port, host=ANY_ADDRESS, spool=name, credentials=credentials)
        write_atomic(folder / LINES / f"{name}.json", stamped(settings))
    follower = Follower(exchange, files)
    follower.look()
    follower.start()
    kind = Kind(
        "the receiver",
        "use another port in the values of the chart",
        ReceiverLine,
        lambda line, base: PodReceiverSite(line, base, exchange),
        DRAIN_SECONDS,
        refusal,
    )
    LineServer(folder, kind, HttpLimits()).run()


if __name__ == "__main__":
    main()
