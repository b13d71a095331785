"""The router process: forwards chat requests to model versions according to the route files of all lines, and traces every answer."""

from __future__ import annotations

from pathlib import Path

import click

from ratchet.router.line import RouterSite
from ratchet.router.settings import RouterLine
from ratchet.runtime.http_limits import HttpLimits
from ratchet.runtime.serving.announcement import DRAIN_SECONDS
from ratchet.runtime.serving.line_server import Kind, LineServer


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), required=True, help="Folder with the settings of the lines.")
def main(folder: Path) -> None:
    """Run the router process until SIGTERM."""
    remedy = "free the port, or set serving.router_port in the loop file"
    LineServer(folder, Kind("the router", remedy, RouterLine, RouterSite, DRAIN_SECONDS), HttpLimits()).run()


if __name__ == "__main__":
    main()
