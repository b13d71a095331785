"""How often the gate passes a better candidate, an equal one, one that loses in a slice, and one that only writes longer answers.

Every figure comes from the product's own evaluation of simulated rewards: `paired_interval`, `length_adjusted_interval` and the built-in
checks. The baseline in the same run is the former rule on the same rewards: two-sided intervals, slices that hold on their estimates, and
no adjustment for length.

`python benchmarks/gate_decisions.py [--worlds 4000] [--seed 1]`
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np

from contracts.evaluation import Comparison
from contracts.ids import digest, digest_file
from contracts.loop import Loop
from flows.core.triggers import evaluation_level
from gates.slices import losing
from gates.statistics import length_adjusted_interval, paired_interval

ROOT = Path(__file__).parent
LOOP = Loop.model_validate(
    {
        "line": {"name": "benchmark", "served_model": "benchmark"},
        "sources": [{"name": "in", "kind": "receiver"}],
        "rewards": [{"name": "exact_match"}],
        "holdout": {"rotate_after": 8},
    }
)
LEVEL = evaluation_level(LOOP)
FORMER_LEVEL = 1 - (1 - LOOP.gate.level) / LOOP.holdout.rotate_after
"""Level of the two-sided intervals of the former rule."""
DISCORDANCE = 0.3
"""Share of the prompts that one model answers correctly and the other does not."""


def differences(draw: np.random.Generator, gain: float, shape: tuple[int, ...], discordance: float = DISCORDANCE) -> np.ndarray:
    """Return paired reward differences -1, 0 and 1 with this mean and this share of differences that are not 0."""
    up, down = (discordance + gain) / 2, (discordance - gain) / 2
    return draw.choice([-1.0, 0.0, 1.0], p=[down, 1 - up - down, up], size=shape)


def passes(values: Sequence[float], level: float) -> bool:
    """Return whether the interval is above 0."""
    found = paired_interval(values, level)
    return found is not None and found.low > 0


def quality(draw: np.random.Generator, worlds: int) -> Iterator[tuple[str, Any]]:
    """Yield the share of candidates that pass, by gain and number of prompts, and the share of editions in which an equal one passes."""
    for gain in (0.02, 0.05, 0.10):
        for n in (200, 400, 600, 1000):
            rows = differences(draw, gain, (worlds, n))
            yield f"gain {gain:g}, {n} prompts", _shares([(passes(row, LEVEL), passes(row, FORMER_LEVEL)) for row in rows])
    editions = differences(draw, 0.0, (worlds, LOOP.holdout.rotate_after, 600))
    both = [tuple(any(passes(row, level) for row in edition) for level in (LEVEL, FORMER_LEVEL)) for edition in editions]
    yield "no gain, any of 8 evaluations of an edition", _shares(both)


def compared(rows: np.ndarray) -> list[Comparison]:
    """Return the comparison of each slice. `rows` has one row of differences per slice."""
    found = []
    for number, row in enumerate(rows):
        interval = paired_interval(row, LEVEL)
        assert interval is not None
        low = interval.estimate
        found.append(Comparison(name=f"slice:{number}", n=len(row), champion=0.5, candidate=0.5 + low, difference=interval))
    return found


def slices(draw: np.random.Generator, worlds: int) -> Iterator[tuple[str, Any]]:
    """Yield the share of candidates that the slices hold: with the same gain in each, with no gain, and with a loss of 0.4 in one."""
    margin = LOOP.gate.slice_margin
    for count, n in ((10, 25), (40, 25), (10, 50)):
        for what, gain, loss in (
            ("gain 0.05 in each", 0.05, None),
            ("no gain", 0.0, None),
            ("gain 0.05, but a loss of 0.4 in one", 0.05, -0.4),
        ):
            both = []
            for _ in range(worlds):
                rows = differences(draw, gain, (count, n))
                if loss is not None:
                    rows[0] = differences(draw, loss, (n,), 0.45)
                found = compared(rows)
                judged = found[:1] if loss is not None else found  # the share of losses that are found, not of other slices
                held = losing(found, margin)
                both.append((any(one in held for one in judged), any(one.difference.estimate < -margin for one in judged)))
            yield f"{count} slices of {n}, {what}", _shares(both)


def verbosity(draw: np.random.Generator, worlds: int) -> Iterator[tuple[str, Any]]:
    """Yield the share of candidates that pass `quality` under a judge that likes long answers, with and without the adjustment.

    The judge prefers one of two answers with the probability of a logistic function of quality and length. A trap is as good as the
    champion and writes answers that are longer by a standard deviation. A winner is better, and its lengths differ by chance or a little.
    """
    for what, better, mean_length in (
        ("trap: equal, longer", 0.0, 1.0),
        ("winner: better, equal length", 0.6, 0.0),
        ("winner: better, a little longer", 0.6, 0.3),
    ):
        both = []
        for _ in range(worlds):
            longer = draw.normal(mean_length, 1.0, 400)
            chance = 1 / (1 + np.exp(-(better + 0.8 * np.tanh(longer) + draw.normal(0, 1.0, 400))))
            values = (draw.random(400) < chance) * 2.0 - 1.0
            adjusted = length_adjusted_interval(values, list(longer), LEVEL)
            raw = passes(values, LEVEL)
            both.append((raw and adjusted is not None and adjusted.low > 0, raw))
        yield what, _shares(both)


def _shares(both: Sequence[tuple[bool, ...]]) -> dict[str, float]:
    return {"share": round(float(np.mean([one for one, _ in both])), 4), "former": round(float(np.mean([one for _, one in both])), 4)}


@click.command()
@click.option("--worlds", default=4000, help="Simulated evaluations per figure.")
@click.option("--seed", default=1)
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "results" / "gate_decisions.json")
def main(worlds: int, seed: int, out: Path) -> None:
    """Simulate, print the figures and write them."""
    draw = np.random.default_rng(seed)
    code = digest({path.name: digest_file(path) for path in sorted((ROOT.parent / "gates").glob("*.py"))})[:12]
    result: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat(), "code": code, "worlds": worlds}
    for section in (quality, slices, verbosity):
        result[section.__name__] = {}
        for name, shares in section(draw, worlds):
            result[section.__name__][name] = shares
            click.echo(f"{section.__name__}: {name}: {shares['share']:.1%} (former rule: {shares['former']:.1%})")
    out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
