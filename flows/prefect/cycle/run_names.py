"""The names by which the runs of cycles are found in Prefect."""

from __future__ import annotations

from typing import Literal

FLOW = "ratchet-retrain"
"""Name of the flow. The deployment of a line is `ratchet-retrain/LINE`."""
LINE_TAG = "line:"
"""Prefix of the tag with which a deployment names its line."""
OUTCOME_TAG = "outcome:"
"""Prefix of the tag that says how the cycle of an ended run ended: a final state of cycles, or NOT_OPENED."""
NOT_OPENED = "not_opened"
When = Literal["now", "any new traces", "enough new traces"]
"""The condition under which a run opens a cycle."""


def run_name(cycle: str) -> str:
    """Return the name of a cycle's run, for example support/0007. `cycle` is the cycle's stream."""
    return cycle.removeprefix("cycle/")


def cycle_tag(cycle: str) -> str:
    """Return the tag by which a cycle's run is found, whatever its name and its deployment are. `cycle` is the cycle's stream."""
    return f"ratchet-{cycle}"
