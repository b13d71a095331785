"""Draws the simulated month of `lake_month.py`: one panel per figure, with upkeep and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from panels import COLUMNS, framed

WIDTH, HEIGHT, LEFT, TOP, GAP = 270, 130, 60, 30, 42
COLOURS = {"with": "#0b6bcb", "without": "#b26a00"}
PANELS: dict[str, Callable[[dict[str, Any]], float]] = {
    "data files of the tables": lambda row: row["files"],
    "files on disk": lambda row: row["disk_files"],
    "MB on disk": lambda row: row["disk_bytes"] / 1e6,
    "CPU s of an append (median)": lambda row: row["append_cpu_s"],
    "CPU s of a scan of one day": lambda row: row["scan_day_cpu_s"],
    "CPU s of a scan of all days": lambda row: row["scan_all_cpu_s"],
}


def draw(result: dict[str, Any]) -> str:
    """Return an SVG with the figures over the days."""
    panels = [_panel(result, title, figure, at % COLUMNS, at // COLUMNS) for at, (title, figure) in enumerate(PANELS.items())]
    words = {"with": "with upkeep", "without": "without: only the writer merges files"}
    return framed(panels, words, COLOURS, (WIDTH + LEFT, HEIGHT + TOP + GAP), LEFT, 30)


def _panel(result: dict[str, Any], title: str, figure: Callable[[dict[str, Any]], float], column: int, line: int) -> str:
    x0, y0 = LEFT + column * (WIDTH + LEFT), 30 + TOP + line * (HEIGHT + TOP + GAP)
    lines = {name: [(row["day"], figure(row)) for row in result[name]] for name in COLOURS}
    most = max(value for points in lines.values() for _, value in points) or 1.0
    last = max(day for points in lines.values() for day, _ in points)

    def at(day: float, value: float) -> str:
        return f"{x0 + (WIDTH - 20) * day / last:.1f},{y0 + HEIGHT * (1 - value / most):.1f}"

    parts = [f'<text x="{x0}" y="{y0 - 10}" font-weight="bold">{title}</text>']
    for share in (0.0, 0.5, 1.0):
        y = y0 + HEIGHT * (1 - share)
        parts.append(f'<line x1="{x0}" x2="{x0 + WIDTH - 20}" y1="{y}" y2="{y}" stroke="#dde3e9"/>')
        parts.append(f'<text x="{x0 - 6}" y="{y + 4}" text-anchor="end">{_tick(most * share)}</text>')
    for day in range(0, last + 1, max(1, last // 3)):
        parts.append(f'<text x="{at(day, 0).split(",")[0]}" y="{y0 + HEIGHT + 16}" text-anchor="middle">{day}</text>')
    for name, points in lines.items():
        path = " ".join(at(day, value) for day, value in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="1.8"/>')
    return "".join(parts)


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
