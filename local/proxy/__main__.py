"""Runs the router process: `python -m local.proxy --route FILE --receiver FILE --token FILE [--port N]`."""

from __future__ import annotations

from pathlib import Path

import click

from local.asgi import run_app
from local.proxy.app import build_app
from local.proxy.forwarded import FORWARDED, ForwardedCounts
from local.proxy.route_file import RouteFile
from local.proxy.spans import Exporter


@click.command()
@click.option("--route", type=click.Path(path_type=Path), required=True)
@click.option("--receiver", type=click.Path(path_type=Path), required=True)
@click.option("--token", type=click.Path(path_type=Path), required=True)
@click.option("--port", default=0)
@click.option("--assume-consent", is_flag=True, help="Put content into traces unless the caller refuses consent.")
def main(route: Path, receiver: Path, token: Path, port: int, assume_consent: bool) -> None:
    """Run the router process until SIGTERM."""
    app = build_app(RouteFile(route), Exporter(receiver, token), ForwardedCounts(route.with_name(FORWARDED)), assume_consent)
    run_app(app, port, "the router", "free the port, or set serving.router_port in the loop file")


if __name__ == "__main__":
    main()
