"""`ratchet demo`: runs the complete loop on this machine."""

from __future__ import annotations

import time
from pathlib import Path

import click

from ratchet.flows.cli.output import json_option, print_json, table
from ratchet.flows.cli.terminal import say
from ratchet.flows.config.home import Home
from ratchet.flows.core.folds.cycle import CycleView


@click.command()
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    default=Path(".ratchet-demo"),
    show_default=True,
    help="Folder of the demo. Its previous content is deleted.",
)
@click.option("--stop", is_flag=True, help="Only stop the processes of an earlier demo. Its files are kept.")
@json_option
def demo(home: Path, stop: bool, as_json: bool) -> None:
    """Run the complete loop on this machine with simulated users.

    Trains a small model, serves it to the users, and runs two cycles: one with a normal recipe and one with a bad recipe. Takes a few
    minutes.
    """
    from ratchet.flows.demo import stage as theatre
    from ratchet.flows.demo.play import Demo

    place, started = Home(home.absolute()), time.monotonic()
    if stop:
        stopped = theatre.stop(place)
        if as_json:
            print_json({"home": str(place.root), "stopped": stopped})
        return
    theatre.clear_home(place)
    stage = theatre.Stage(place, say)
    try:
        cycles = Demo(place, say, stage.approve).play(stage.open)
        if as_json:
            print_json([{"cycle": c.id, "state": c.state, "reason": c.reason} for c in cycles])
        else:
            _show(place, home, cycles, stage.url)
    finally:
        stage.close()
    say(f"finished in {time.monotonic() - started:.0f} s; `ratchet demo --stop` stops the model servers, the router and Prefect")


def _show(place: Home, home: Path, cycles: list[CycleView], url: str) -> None:
    from ratchet.flows.composition.ports import open_ledger
    from ratchet.flows.report.page import write_page

    page = write_page(open_ledger(place), place, "kubectl", place.reports / "kubectl.html")
    rows = [[c.id, str(c.method or "–"), *_change(c), str(c.state).replace("_", " "), c.reason] for c in cycles]
    table("", ["cycle", "method", "before", "after", "state", "reason"], rows)
    say(f"\nreport      {page}")
    say(f"Prefect UI  {url}")
    say(f"details     RATCHET_HOME={home} .venv/bin/ratchet explain kubectl/1   (and kubectl/2)")


def _change(cycle: CycleView) -> tuple[str, str]:
    """Return the accuracy of champion and candidate on questions excluded from training."""

    report = cycle.report
    overall = next((c for c in report.comparisons if c.name == "overall"), None) if report else None
    return (f"{overall.champion:.3f}", f"{overall.candidate:.3f}") if overall else ("–", "–")
