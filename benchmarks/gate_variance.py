"""Which ways to reduce the variance of the gate's paired test are valid, and what they are worth.

Simulates prompts with an own probability of a right answer for champion and candidate. In every world, about 30 % of the prompts differ
if each model answers once. `one answer` and `N answers` are the product's `paired_interval` over the mean difference of each prompt. The
other rules are not in the product: `residual` regresses the differences on the champion's score in an earlier evaluation, centred within
the sample, and takes its error from the residuals; `own score` uses the score of the same evaluation; `pool` knows the champion's mean
from four times as many prompts (a control variate).

`python -m benchmarks.gate_variance [--worlds 2000] [--seed 1]`
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import numpy as np

from benchmarks.gate_decisions import LEVEL, LOOP, passes
from ratchet.contracts.ids import digest, digest_file
from ratchet.gates.statistics import normal_quantile

ROOT = Path(__file__).parent
PROMPTS = 600
CRITICAL = normal_quantile((1 + LEVEL) / 2)
WORLDS = ("noise", "half", "fixed", "skewed")
"""noise: all discordance is chance of decoding. half: half of it is a lasting difference of the models. fixed: all of it is, so another
answer to a prompt tells nothing. skewed: the candidate gains on prompts that the champion gets wrong and loses on those it gets right."""
REPEATS = (1, 2, 4)


def champion(draw: np.random.Generator, world: str, n: int) -> np.ndarray:
    """Return the champion's probability of a right answer per prompt."""
    if world == "skewed":
        return draw.choice([0.1, 0.9], size=n)
    open_share = {"noise": 0.6, "half": 0.3, "fixed": 0.0}[world]
    certain = (1 - open_share) / 2
    return draw.choice([0.0, 0.5, 1.0], p=[certain, open_share, certain], size=n)


def residual(values: np.ndarray, covariate: np.ndarray) -> bool:
    """Return whether the mean is above 0 by the error of the residuals. The centred covariate leaves the mean itself as it is."""
    centred = covariate - covariate.mean()
    slope = centred @ values / max(1e-9, centred @ centred)
    left = values - values.mean() - slope * centred
    return bool(values.mean() > CRITICAL * math.sqrt(left @ left / (len(values) - 2) / len(values)))


def pool(values: np.ndarray, own: np.ndarray, others: np.ndarray) -> bool:
    """Return whether the gain is above 0 if the champion's mean is also measured on `others`, prompts of the same population."""
    centred, n, more = own - own.mean(), len(own), len(others)
    slope = centred @ values / max(1e-9, centred @ centred) * more / (n + more)
    left = values - slope * own
    error = left.var(ddof=1) / n + slope**2 * others.var(ddof=1) / more
    return bool(values.mean() - slope * (own.mean() - others.mean()) > CRITICAL * math.sqrt(error))


def edition(draw: np.random.Generator, world: str, gain: float, evaluations: int) -> dict[str, bool]:
    """Return for each rule whether any of the evaluations of one edition passes. They share the prompts and the champion's answers."""
    old = champion(draw, world, PROMPTS)
    most = max(REPEATS)
    found: dict[str, bool] = {}
    right, earlier = draw.random((PROMPTS, most)) < old[:, None], draw.random(PROMPTS) < old
    more = champion(draw, world, 3 * PROMPTS)
    others = (draw.random(len(more)) < more).astype(float)
    for _ in range(evaluations):
        new = candidate(draw, world, gain, old)
        differences = (draw.random((PROMPTS, most)) < new[:, None]).astype(float) - right
        one, own = differences[:, 0], right[:, 0].astype(float)
        results = {f"{n} answer{'s' * (n > 1)}": passes(differences[:, :n].mean(axis=1), LEVEL) for n in REPEATS}
        results |= {"residual": residual(one, earlier.astype(float)), "own score": residual(one, own), "pool": pool(one, own, others)}
        found = {name: found.get(name, False) or result for name, result in results.items()}
    return found


def candidate(draw: np.random.Generator, world: str, gain: float, old: np.ndarray) -> np.ndarray:
    """Return another candidate's probabilities for the same prompts. Its lasting differences are drawn anew."""
    n = len(old)
    if world == "noise":
        return np.where(old == 0.5, 0.5 + gain / 0.6, old)
    if world == "skewed":
        return np.where(old < 0.5, 0.23 + gain, 0.77 + gain)
    # The share of changed prompts among those that the champion gets right or wrong; each is half of the certain prompts.
    share, certain = (0.3, 1.0) if world == "fixed" else (0.15, 0.7)
    up, down = share + gain, share - gain
    chance = np.where(old == 0.0, up / certain, np.where(old == 1.0, down / certain, 0.0))
    return np.where(draw.random(n) < chance, 1 - old, old)


def rows(draw: np.random.Generator, worlds: int) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
    """Yield for each world the share of editions in which an equal candidate passes, and of better candidates that pass, by rule."""
    for world in WORLDS:
        equal = [edition(draw, world, 0.0, LOOP.holdout.rotate_after) for _ in range(worlds)]
        better = [edition(draw, world, 0.05, 1) for _ in range(worlds)]
        yield (
            world,
            {
                name: {
                    "equal": round(float(np.mean([one[name] for one in equal])), 4),
                    "better": round(float(np.mean([one[name] for one in better])), 4),
                }
                for name in equal[0]
            },
        )


@click.command()
@click.option("--worlds", default=2000, help="Simulated editions per figure.")
@click.option("--seed", default=1)
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "results" / "gate_variance.json")
def main(worlds: int, seed: int, out: Path) -> None:
    """Simulate, print the figures and write them."""
    code = digest({path.name: digest_file(path) for path in (ROOT.parent / "gates" / "statistics.py", Path(__file__))})[:12]
    found = dict(rows(np.random.default_rng(seed), worlds))
    for world, rules in found.items():
        for name, shares in rules.items():
            click.echo(f"{world}: {name}: equal {shares['equal']:.1%} per edition, better by 0.05 {shares['better']:.1%}")
    result = {"date": datetime.now(UTC).date().isoformat(), "code": code, "worlds": worlds, "rules": found}
    out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
