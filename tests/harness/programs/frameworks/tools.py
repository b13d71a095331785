"""The tools of the script as functions, which frameworks describe by their signatures."""

from __future__ import annotations

from tests.harness.script import result_of


def tide_table(port: str, day: int) -> str:
    """Times of high water."""
    return result_of("tide_table", {"port": port, "day": day})


def wind_report(station: str) -> str:
    """Wind at a station."""
    return result_of("wind_report", {"station": station})


FUNCTIONS = (tide_table, wind_report)
