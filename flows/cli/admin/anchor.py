"""`ratchet anchor` and `verify`: export the signed heads of the ledger, and verify the ledger with these exports."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click

from ratchet.flows.cli.lines import existing, unknown_line
from ratchet.flows.cli.output import json_option, open_installation, print_json
from ratchet.flows.cli.terminal import say, show

_SHOWN = 5
"""Streams with rows that are not anchored, of which the text names at most this many. The JSON output names all."""


@click.command()
@json_option
def anchor(as_json: bool) -> None:
    """Export the signed heads of all ledger streams, if they have changed.

    The export is written to RATCHET_ANCHORS (default: RATCHET_HOME/anchors) and signed with the key in RATCHET_ANCHOR_KEY (default:
    RATCHET_HOME/anchor.key), which is created at first use.
    """
    from ratchet.flows.composition.anchors import open_anchors

    installation = existing(open_installation())
    export = open_anchors(installation.home).export(installation.ledger, datetime.now(UTC))
    if as_json:
        streams = len(export.heads) if export else 0
        print_json({"exported": export is not None, "number": export.number if export else None, "streams": streams})
    elif export is None:
        say("nothing exported: the ledger has no rows, or none that the newest export does not cover")
    else:
        say(f"export {export.number}: the heads of {len(export.heads)} streams are in {installation.home.anchors}")


@click.command()
@json_option
def verify(as_json: bool) -> None:
    """Verify the hash chains of all ledger streams, and compare them with the signed exports of `ratchet anchor`.

    Exits with code 1 if it finds a change. Also shows which rows no export covers yet.
    """
    from ratchet.flows.composition.anchors import open_anchors, verify_ledger

    installation = open_installation()
    if not installation.home.root.exists():
        existing(installation)  # exports without a ledger are damage, but a wrong folder is none
    result = verify_ledger(installation.ledger, open_anchors(installation.home))
    if not result.heads and not result.exports and not result.damage:
        raise unknown_line(installation.home, [], None)  # nothing was verified
    rows = sum(head.seq for head in result.heads)
    newest = result.newest
    if as_json:
        print_json(
            {
                "streams": len(result.heads),
                "rows": rows,
                "whole": not result.damage,
                "damage": [one.model_dump() for one in result.damage],
                "exports": result.exports,
                "newest": {"number": newest.number, "at": newest.at.isoformat()} if newest else None,
                "unanchored": [one.model_dump() for one in result.unanchored],
            }
        )
        sys.exit(1 if result.damage else 0)
    for one in result.damage:
        show("failed: ", fg="red", bold=True, newline=False, error=True)
        show(one.text, error=True)
    chains = sum(one.what == "chain" for one in result.damage)
    state = "all hash chains valid"
    if result.damage:
        state = f"NOT VALID: {len(result.damage)} faults, of which {chains} in hash chains; something was changed or damaged"
    say(f"{rows} rows in {len(result.heads)} streams; {state}")
    if newest is None:
        say(
            "no valid export exists, so a change with newly computed hashes, a deleted stream and deleted last rows cannot be noticed; "
            "run `ratchet anchor`"
        )
    else:
        say(f"{result.exports} exports; the newest is {newest.number} of {newest.at:%Y-%m-%d %H:%M:%S} UTC")
    if newest is not None and result.unanchored:
        named = ", ".join(f"{one.stream} from row {one.first}" for one in result.unanchored[:_SHOWN])
        more = f", and {len(result.unanchored) - _SHOWN} more streams" if len(result.unanchored) > _SHOWN else ""
        say(f"{sum(one.rows for one in result.unanchored)} rows are newer and not anchored yet: {named}{more}")
    sys.exit(1 if result.damage else 0)
