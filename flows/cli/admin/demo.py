"""`ratchet demo`: runs the complete loop on this machine."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import click

from ratchet.flows.cli.output import json_option, print_json, table
from ratchet.flows.cli.terminal import say
from ratchet.flows.config.home import Home
from ratchet.flows.core.folds.cycle import CycleView

DEFAULT = ".ratchet-demo"
"""Folder of the demo, unless another one is given."""


@click.command()
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    default=Path(DEFAULT),
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
    say("The complete loop on this machine, with simulated users. It takes four to five minutes.\n")
    stage = theatre.Stage(place, lambda text: played.lap("Approval", text))
    played = Demo(place, say, stage.approve)
    try:
        cycles = played.play(stage.open)
        if as_json:
            print_json([{"cycle": c.id, "state": c.state, "reason": c.reason} for c in cycles])
        else:
            _show(place, home, cycles, stage.url)
    finally:
        stage.close()
    say(f"Finished in {time.monotonic() - started:.0f} s.")


def _show(place: Home, home: Path, cycles: list[CycleView], url: str) -> None:
    from ratchet.flows.composition.ports import open_ledger
    from ratchet.flows.demo.narration import summarize
    from ratchet.flows.report.page import write_page

    page = write_page(open_ledger(place), place, "kubectl", place.reports / "kubectl.html")
    rows = [[f"kubectl/{c.number}", one.method, one.before, one.after, one.result, one.reason] for c in cycles for one in [summarize(c)]]
    say("")
    table("", ["cycle", "method", "right before", "right after", "result", "why"], rows)
    command = _command()
    say("\nLook further (models, router and Prefect keep running):")
    say(f"  why, with all figures   RATCHET_HOME={home} {command} explain kubectl/1      (the second cycle: kubectl/2)")
    say(f"  report with charts      {page}")
    say(f"  Prefect UI              {url}      (login: the content of {place.prefect_login()})")
    say(f"  stop everything         {command} demo --stop" + ("" if home == Path(DEFAULT) else f" --home {home}"))
    say("  next                    docs/quickstart.md takes you through the same steps by hand; loops/README.md lists further examples")


def _command() -> str:
    """Return how the user called `ratchet`: its path if it is not on the PATH."""
    called = sys.argv[0]
    found = shutil.which("ratchet")
    return called if Path(called).name == "ratchet" and (found is None or Path(found) != Path(called).absolute()) else "ratchet"
