"""Runs the router process: `python -m local.proxy --route FILE --receiver FILE --token FILE [--port N]`.

Its other files lie beside the route file: counts, state, and the spool of traces.
"""

from __future__ import annotations

from pathlib import Path

import click

from contracts.serving import Route
from local.asgi import run_app
from local.proxy.app import Router, RouterSettings, build_app
from local.proxy.exporter import Exporter
from local.proxy.forwarded import FORWARDED, ForwardedCounts
from local.proxy.span_spool import SPOOL_BYTES, SpanSpool
from local.proxy.state import STATE, StateFile
from runtime.http_limits import HttpLimits
from runtime.watched_file import WatchedFile


@click.command()
@click.option("--route", type=click.Path(path_type=Path), required=True)
@click.option("--receiver", type=click.Path(path_type=Path), required=True)
@click.option("--token", type=click.Path(path_type=Path), required=True)
@click.option("--port", default=0)
@click.option("--assume-consent", is_flag=True, help="Put content into traces unless the caller refuses consent.")
@click.option("--name-versions", is_flag=True, help="Name the version in each answer.")
@click.option("--deadline", default=RouterSettings.deadline, help="Maximum seconds until an answer is complete.")
@click.option("--per-caller", default=RouterSettings.per_caller, help="Maximum number of requests of one caller at the same time.")
@click.option("--spool-bytes", default=SPOOL_BYTES, help="Maximum size of the traces that wait for the receiver.")
def main(
    route: Path,
    receiver: Path,
    token: Path,
    port: int,
    assume_consent: bool,
    name_versions: bool,
    deadline: float,
    per_caller: int,
    spool_bytes: int,
) -> None:
    """Run the router process until SIGTERM."""
    routes, forwarded = WatchedFile(route, Route, keep=True), ForwardedCounts(route.with_name(FORWARDED))
    spool = SpanSpool(route.with_name("spool"), spool_bytes)
    state = StateFile(
        route.with_name(STATE),
        routes,
        lambda: {"in_flight": forwarded.in_flight(), "dropped_traces": dict(spool.dropped), "waiting_bytes": spool.size},
    )
    settings = RouterSettings(assume_consent, name_versions, deadline, per_caller)
    app = build_app(Router(routes, Exporter(spool, receiver, token), forwarded, state, settings))
    run_app(app, port, "the router", "free the port, or set serving.router_port in the loop file", HttpLimits())


if __name__ == "__main__":
    main()
