"""Home folders with the ledger of a simulated line, for tests of the commands."""

from __future__ import annotations

from pathlib import Path

from ratchet.contracts.cycle import Append, Row
from ratchet.flows.config.home import Home
from ratchet.flows.ledger.sql import SqlLedger
from tests.simulation.simulated_line import SimulatedLine

LOOP = """\
[line]
name = "sim"
served_model = "sim"
[[sources]]
name = "in"
kind = "receiver"
[[rewards]]
name = "exact_match"
[[rewards]]
name = "user_feedback"
"""


def home_of(sim: SimulatedLine, folder: Path) -> Home:
    """Write all rows of the line to the ledger of a new home folder, with their times, and its artifacts."""
    home = Home(folder / "home")
    ledger = SqlLedger(home.ledger_url)
    for stream, rows in sim.ledger.rows.items():
        for row in rows:
            ledger.append([Append(stream=stream, after=row.seq - 1, rows=(Row(kind=row.kind, key=row.key, data=row.data),))], None, row.at)
    return home
