"""Losses that add up over promotions in one golden slice: how often the gate finds them, and how often it raises a false alarm.

A line has five golden slices of equal size and answers of reward 0 or 1. The first champion is right on 70 % of the prompts. From one
promotion to the next, 12 % of the answers change. In an equal line, as many become right as become wrong; in an eroding one, the first
slice loses a little with each promotion. At each promotion, the candidate is compared with all earlier champions.

An alarm is any part that `eroded` returns over twenty equal promotions, unless the candidate wins back a part there, as the gate
has it. A loss is found if the slice is named by the second promotion after the one at which the loss has reached 0.1. Beside it is the
rule that the gate had before: the whole interval of the comparison with the best earlier champion is below the margin of 0.1.

`python benchmarks/erosion.py`
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np

from ratchet.contracts.ids import digest_file
from ratchet.gates.evaluation import earlier as rule
from ratchet.gates.evaluation.earlier import WON_BACK, Earlier, Scored, best_earlier, eroded, rows_to_find
from ratchet.gates.evaluation.questions import Decoding
from ratchet.gates.statistics import paired_interval

RESULTS = Path(__file__).parent / "results" / "erosion.json"
GREEDY = Decoding(0.0, 1)
RIGHT, CHANGED, SLICES, MARGIN, LEVEL = 0.7, 0.12, 5, 0.1, 0.95
PROMOTIONS = 20


def champions(rng: np.random.Generator, rows: int, promotions: int, loss: float) -> list[np.ndarray]:
    """Return the rewards of each champion, of shape (SLICES, rows). `loss` is that of the first slice per promotion."""
    found = [(rng.random((SLICES, rows)) < RIGHT).astype(float)]
    for number in range(promotions):
        lost = np.array([loss] + [0.0] * (SLICES - 1))[:, None]
        right = RIGHT - number * lost
        wrong_now, right_now = (CHANGED + lost) / 2 / right, (CHANGED - lost) / 2 / (1 - right)
        drawn, last = rng.random((SLICES, rows)), found[-1]
        found.append(np.where(last > 0, drawn >= wrong_now, drawn < right_now).astype(float))
    return found


def answers(rewards: np.ndarray) -> dict[str, Scored]:
    """Return the scored answers of a champion."""
    return {
        f"{part}/{row}": Scored(f"{part}/{row}", ("golden", f"slice:{part}"), float(rewards[part, row]), frozenset({"rule"}))
        for part in range(SLICES)
        for row in range(rewards.shape[1])
    }


def alarms(line: list[dict[str, Scored]], number: int) -> tuple[set[str], set[str]]:
    """Return the parts that are found at a promotion, by the rule and by the former one."""
    before = {f"v-{n:03d}": Earlier(GREEDY, line[n]) for n in range(number)}
    now = {GREEDY: line[number]}
    won = {part for part, pairs in _groups(line[number - 1], line[number]).items() if _won(pairs)}
    former = {one.comparison.name for one in best_earlier(now, before, LEVEL, 20) if one.comparison.difference.high < -MARGIN}
    return {one.comparison.name for one in eroded(now, before, 20)} - won, former


def _groups(before: dict[str, Scored], now: dict[str, Scored]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for key, one in now.items():
        for group in one.groups:
            found.setdefault(group, []).append(one.reward - before[key].reward)
    return found


def _won(differences: list[float]) -> bool:
    interval = paired_interval(differences, WON_BACK)
    return interval is not None and interval.low > 0


def measured(rng: np.random.Generator, rows: int, loss: float, lines: int) -> dict[str, float]:
    """Return the shares of lines with a finding by each rule. `loss` 0: any alarm over PROMOTIONS equal promotions."""
    reached = math.ceil(0.1 / loss - 1e-9) if loss else PROMOTIONS
    last = reached + 2 if loss else PROMOTIONS
    counts = [0, 0]
    for _ in range(lines):
        line = [answers(one) for one in champions(rng, rows, last, loss)]
        seen: tuple[set[str], set[str]] = set(), set()
        for number in range(1, last + 1):
            for kind, parts in enumerate(alarms(line, number)):
                seen[kind].update(parts)
        for kind in (0, 1):
            counts[kind] += "slice:0" in seen[kind] if loss else bool(seen[kind])
    return {"added up": round(counts[0] / lines, 3), "best champion": round(counts[1] / lines, 3)}


@click.command()
@click.option("--lines", default=200, help="Simulated lines per figure.")
def main(lines: int) -> None:
    """Simulate the lines and write the results."""
    rng = np.random.default_rng(20261127)
    code = digest_file(Path(rule.__file__))[:12]
    report: dict[str, Any] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "code": code, "lines": lines, "rows": {}}
    report["rows_to_find"] = {str(loss): rows_to_find(loss, SLICES + 1) for loss in (0.03, 0.05, 0.1)}
    for rows in (50, 100, 200, 300, 400):
        found = {"equal": measured(rng, rows, 0.0, lines)}
        found |= {f"-{loss:g} each": measured(rng, rows, loss, lines) for loss in (0.02, 0.034, 0.05)}
        report["rows"][str(rows)] = found
        click.echo(f"{rows} rows a slice: {json.dumps(found)}")
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
