"""`ratchet demo`: the whole loop on this machine, with the product's own parts."""

from __future__ import annotations

import time
from pathlib import Path

import click

from flows.cli.show import say, table
from flows.config.home import Home
from flows.core.views import CycleView


@click.command()
@click.option(
    "--home", type=click.Path(path_type=Path), default=Path(".ratchet-demo"), show_default=True, help="Its folder; emptied first."
)
@click.option("--stop", is_flag=True, help="Only end what an earlier demo left running; its report stays.")
def demo(home: Path, stop: bool) -> None:
    """Build a small model, serve it to simulated users, and run two cycles: an honest one, and one with a bad recipe."""
    from flows.demo import stage as theatre
    from flows.demo.play import Demo

    place, started = Home(home.absolute()), time.monotonic()
    if stop:
        theatre.stop(place)
        return
    theatre.empty(place)
    stage = theatre.Stage(place, say)
    try:
        cycles = Demo(place, say, stage.approve).play(stage.open)
        _show(place, home, cycles, stage.url)
    finally:
        stage.close()
    say(f"{time.monotonic() - started:.0f} s in all; `ratchet demo --stop` ends the model servers, the router and Prefect")


def _show(place: Home, home: Path, cycles: list[CycleView], url: str) -> None:
    from flows.engine.wiring import open_ledger
    from flows.report.page import write_page

    page = write_page(open_ledger(place), place, "kubectl", place.reports / "kubectl.html")
    rows = [
        [c.id, "–" if c.choice is None else str(c.choice.method), *_change(c), str(c.state).replace("_", " "), c.reason] for c in cycles
    ]
    table("", ["cycle", "method", "before", "after", "ended", "why"], rows)
    say(f"\nreport      {page}")
    say(f"Prefect UI  {url}")
    say(f"story       RATCHET_HOME={home} .venv/bin/ratchet explain kubectl/1   (and kubectl/2)")


def _change(cycle: CycleView) -> tuple[str, str]:
    """Accuracy of champion and candidate on questions that no training saw."""
    from flows.report.story import report_of

    report = report_of(cycle)
    overall = next((c for c in report.comparisons if c.name == "overall"), None) if report else None
    return (f"{overall.champion:.3f}", f"{overall.candidate:.3f}") if overall else ("–", "–")
