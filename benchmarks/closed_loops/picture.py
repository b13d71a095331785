"""Draws the loops: the true accuracy over the cycles, one panel per task."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

from benchmarks.closed_loops.figures import plain
from benchmarks.panels import COLUMNS, framed

WIDTH, HEIGHT, LEFT, TOP, GAP = 260, 170, 44, 30, 34
COLOURS = {"champion": "#0b6bcb", "candidate": "#7d8b99", "truth": "#2e7d32", "evidence": "#b26a00"}


def draw(rows: list[dict[str, Any]]) -> str:
    """Return an SVG with a panel per task: champions as lines, candidates as dots, the two oracles as dashed lines.

    Only loops without traps, searches, other starts and sources of answers are drawn.
    """
    drawn = list(plain(rows).values())
    tasks = list(dict.fromkeys(row["task"] for row in drawn))
    panels = [_panel(task, [row for row in drawn if row["task"] == task], i % COLUMNS, i // COLUMNS) for i, task in enumerate(tasks)]
    words = {"champion": "champion", "candidate": "candidate", "truth": "oracle on the truth", "evidence": "oracle on the same evidence"}
    return framed(panels, words, COLOURS, (WIDTH + LEFT, HEIGHT + TOP + GAP), LEFT, 40)


def _panel(task: str, rows: list[dict[str, Any]], column: int, line: int) -> str:
    x0, y0 = LEFT + column * (WIDTH + LEFT), 34 + TOP + line * (HEIGHT + TOP + GAP)
    cycles = max(len(row["cycles"]) for row in rows)

    def at(cycle: float, accuracy: float) -> str:
        return f"{x0 + (WIDTH - 20) * cycle / cycles:.1f},{y0 + HEIGHT * (1 - accuracy):.1f}"

    parts = [f'<text x="{x0}" y="{y0 - 10}" font-weight="bold">{escape(task)}</text>']
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = y0 + HEIGHT * (1 - tick)
        parts.append(f'<line x1="{x0}" x2="{x0 + WIDTH - 20}" y1="{y}" y2="{y}" stroke="#dde3e9"/>')
        parts.append(f'<text x="{x0 - 8}" y="{y + 4}" text-anchor="end">{tick:g}</text>')
    for cycle in range(cycles + 1):
        parts.append(f'<text x="{at(cycle, 0).split(",")[0]}" y="{y0 + HEIGHT + 16}" text-anchor="middle">{cycle}</text>')
    for row in rows:
        points = [at(0, row["base"]), *(at(i, cycle["accuracy"]) for i, cycle in enumerate(row["cycles"], 1))]
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOURS["champion"]}" stroke-width="1.8"/>')
        for i, cycle in enumerate(row["cycles"], 1):
            if "candidate" in cycle:
                x, height = at(i, cycle["candidate"]).split(",")
                parts.append(f'<circle cx="{x}" cy="{height}" r="2.6" fill="{COLOURS["candidate"]}"/>')
        for name in ("truth", "evidence"):
            if name in row["oracles"]:
                (x1, height), x2 = at(0, row["oracles"][name]["accuracy"]).split(","), x0 + WIDTH - 20
                parts.append(f'<line x1="{x1}" x2="{x2}" y1="{height}" y2="{height}" stroke="{COLOURS[name]}" stroke-dasharray="5 4"/>')
    return "".join(parts)
