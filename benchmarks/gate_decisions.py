"""How often the gate passes a better candidate, an equal one, one that loses in a slice or refuses less, and one that only writes longer.

Every figure comes from the product's own evaluation of simulated rewards: `paired_interval`, `length_adjusted_interval`, the looks with
their boundaries, the levels of an edition, and the built-in checks. The baselines in the same run decide on the same rewards: `one_look`
asks all prompts and gives each evaluation of an edition the same level; `former` has two-sided intervals, slices that hold on their
estimates, and no adjustment for length.

`python -m benchmarks.gate_decisions [--worlds 4000] [--seed 1] [--section quality]`. The figures of the section `safety` are in
`results/gate_safety.json` (`--section safety --out benchmarks/results/gate_safety.json`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.special import stdtrit

from ratchet.contracts.evaluation import ANSWERED, REFUSED, Comparison, EvalReport, Looks, PromptCount, Result, SafetyReport
from ratchet.contracts.ids import digest, digest_file
from ratchet.contracts.loop import Loop, SafetySettings
from ratchet.flows.core.triggers import evaluation_level
from ratchet.gates.checks import Quality, Safety, checks
from ratchet.gates.evaluation.looks import LEAST_BATCH, level_at_equal_length, level_of_look, stop
from ratchet.gates.safety.prompts import standing_prompts
from ratchet.gates.slices import losing
from ratchet.gates.statistics import LENGTH_LEVEL, length_adjusted_interval, paired_interval, paired_share_interval

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


def passes_student(values: np.ndarray, level: float) -> bool:
    """Return whether Student's interval, without the product's corrections of its lower end, is above 0."""
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return bool(values.mean() > float(stdtrit(len(values) - 1, (1 + level) / 2)) * error)


@dataclass(frozen=True)
class Decided:
    """How an evaluation ended."""

    quality: bool
    """Whether the check `quality` passed."""
    passed: bool
    """Whether all checks passed."""
    asked: float
    """Share of the prompts that were asked."""


def decided(values: np.ndarray, level: float, slices: int = 0, longer: np.ndarray | None = None, looks: int = LOOP.gate.looks) -> Decided:
    """Evaluate a candidate with these differences, in their order, by the product's looks and checks.

    Prompt n is in slice n modulo `slices`. `longer` are the differences in length, if a judge scored the answers.
    """
    n, gate = len(values), LOOP.gate
    planned = max(1, min(looks, n // LEAST_BATCH))
    whole = {"holdout": n, **{f"slice:{number}": len(values[number::slices]) for number in range(slices)}}
    known: list[int] = []
    for number in range(1, planned + 1):
        known.append(n * number // planned)
        place = Looks(
            planned=planned,
            prompts=n,
            clusters=n,
            compared=tuple(known),
            level=level,
            stopped="success" if number < planned else None,
        )
        report = report_at(values[: known[-1]], level, slices, longer, place if planned > 1 else None)
        ended = stop(report, whole, gate) if number < planned else None
        if ended:
            break
    if ended == "futility":
        return Decided(False, False, known[-1] / n)
    quality = Quality(gate).check(report).result is Result.PASS
    return Decided(quality, quality and all(check.check(report).result is Result.PASS for check in checks(gate)), known[-1] / n)


def report_at(values: np.ndarray, level: float, slices: int, longer: np.ndarray | None, looks: Looks | None) -> EvalReport:
    """Return the report on the first prompts of an evaluation, all of which both models answered."""
    n, to_pass = len(values), level_of_look(looks, level)
    groups = {"overall": values, "holdout": values, **{f"slice:{number}": values[number::slices] for number in range(slices)}}
    found = [comparison(name, rows, to_pass if name == "overall" else level) for name, rows in groups.items()]
    counts = [
        PromptCount(name=name, asked=len(rows), clusters=len(rows), answered_by_both=len(rows), champion_failed=0, candidate_failed=0)
        for name, rows in groups.items()
        if name != "overall"
    ]
    return EvalReport(
        edition=1,
        champion=digest("champion"),
        candidate=digest("candidate"),
        asked=n,
        looks=looks,
        answered_by_both=n,
        failures={},
        comparisons=tuple(found),
        counts=tuple(counts),
        cut=comparison("cut", np.zeros(n), level),  # both models are cut equally often
        lengths={"champion": 100.0, "candidate": 100.0},
        length_adjusted=None if longer is None else length_adjusted_interval(values, list(longer[:n]), level_at_equal_length(looks, level)),
        answers=digest("answers"),
    )


def comparison(name: str, values: np.ndarray, level: float) -> Comparison:
    """Return the comparison of these differences."""
    interval = paired_interval(values, level)
    assert interval is not None
    return Comparison(name=name, n=len(values), champion=0.5, candidate=0.5 + interval.estimate, difference=interval)


def quality(draw: np.random.Generator, worlds: int) -> Iterator[tuple[str, Any]]:
    """Yield the share of candidates that pass, and the mean share of the prompts asked, by gain and number of prompts."""
    for gain in (-0.05, 0.0, 0.02, 0.05, 0.10):
        for n in (200, 600) if gain <= 0 else (200, 400, 600, 1000):
            rows = differences(draw, gain, (worlds, n))
            found = [decided(row, LEVEL) for row in rows]
            yield (
                f"gain {gain:g}, {n} prompts",
                {
                    "share": _mean([one.quality for one in found]),
                    "one_look": _mean([passes(row, LEVEL) for row in rows]),
                    "former": _mean([passes(row, FORMER_LEVEL) for row in rows]),
                    "asked": _mean([one.asked for one in found]),
                },
            )


def skewed(draw: np.random.Generator, n: int) -> np.ndarray:
    """Return the differences of two equal models whose rewards are mostly near 1 and sometimes near 0."""
    return draw.beta(0.3, 0.1, n) - draw.beta(0.3, 0.1, n)


def lopsided(draw: np.random.Generator, n: int, share: float) -> np.ndarray:
    """Return differences with mean 0 of which most are a small gain, and `share` are a loss of about 1."""
    lost = draw.random(n) < share
    return np.where(lost, -(1 - share), share) + draw.uniform(-share, share, n)


LOST = (0.05, 0.02, 0.01, 0.005)
"""Shares of large losses."""


def equal(draw: np.random.Generator, worlds: int) -> Iterator[tuple[str, Any]]:
    """Yield the share of editions in which a candidate without improvement passes. A pass counts as a promotion."""
    kinds: dict[str, Callable[[int], np.ndarray]] = {
        "equal": lambda n: differences(draw, 0.0, (n,)),
        "equal, skewed rewards": lambda n: skewed(draw, n),
        **{f"a loss of 1 on {share:.1%} of the prompts": partial(_lopsided, draw, share) for share in LOST},
    }
    for what, values in kinds.items():
        for n in (200, 600):
            rows = []
            for _ in range(worlds if what.startswith("equal") else worlds // 4):
                history: list[bool] = []
                fixed = student = False
                for _ in range(LOOP.holdout.rotate_after):
                    row = values(n)
                    history.append(decided(row, evaluation_level(LOOP, history)).quality)
                    fixed = fixed or passes(row, LEVEL)
                    student = student or passes_student(row, LEVEL)
                rows.append((any(history), fixed, student))
            shares = [_mean([row[place] for row in rows]) for place in range(3)]
            yield f"{what}, {n} prompts", dict(zip(("share", "one_look", "student"), shares, strict=True))


def _lopsided(draw: np.random.Generator, share: float, n: int) -> np.ndarray:
    return lopsided(draw, n, share)


MIXED_GAIN = 0.05
"""Gain of the better candidates of an edition with equal and better ones."""


def mixed(draw: np.random.Generator, worlds: int) -> Iterator[tuple[str, Any]]:
    """Yield how often an edition passes an equal candidate, and how often it passes better ones, if half of its candidates are better.

    A candidate that passes becomes the champion, and later candidates are compared with its answers to the same prompts. `one_look` decides
    on candidates of its own line, because its champions are others.
    """
    n = 600
    for name, share in (
        ("no candidate is better", 0.0),
        ("half of the candidates are better", 0.5),
        ("nine of ten candidates are better", 0.9),
    ):
        found: dict[str, list[tuple[bool, int, int]]] = {"share": [], "one_look": []}
        for _ in range(worlds):
            gains = np.where(draw.random(LOOP.holdout.rotate_after) < share, MIXED_GAIN, 0.0)
            for rule, rows in found.items():
                true, right = 0.4, draw.random(n) < 0.4
                history: list[bool] = []
                for gain in gains:
                    up, down = (DISCORDANCE + gain) / 2 / (1 - true), (DISCORDANCE - gain) / 2 / true
                    new = np.where(draw.random(n) < np.where(right, down, up), ~right, right)
                    values = new.astype(float) - right
                    if rule == "share":
                        history.append(decided(values, evaluation_level(LOOP, history)).quality)
                    else:
                        history.append(passes(values, LEVEL))
                    if history[-1]:
                        true, right = true + gain, new
                wrong = any(passed and gain == 0 for passed, gain in zip(history, gains, strict=True))
                rows.append((wrong, sum(passed for passed, gain in zip(history, gains, strict=True) if gain), int((gains > 0).sum())))
        for what, figure in (("an equal one passes", lambda rows: _mean([one for one, _, _ in rows])), ("better ones pass", _of_better)):
            yield f"{name}: {what}", {rule: figure(rows) for rule, rows in found.items()}


def _of_better(rows: Sequence[tuple[bool, int, int]]) -> float:
    return round(sum(passed for _, passed, _ in rows) / max(1, sum(better for _, _, better in rows)), 4)


def compared(rows: np.ndarray) -> list[Comparison]:
    """Return the comparison of each slice. `rows` has one row of differences per slice."""
    return [comparison(f"slice:{number}", row, LEVEL) for number, row in enumerate(rows)]


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


def sliced(draw: np.random.Generator, worlds: int) -> Iterator[tuple[str, Any]]:
    """Yield the share of candidates that pass all checks, with and without looks: ten, two or no slices, and a loss of 0.4 in one."""
    n = 600
    for slices, gain, loss in ((10, 0.10, None), (10, 0.10, -0.4), (2, 0.10, None), (0, 0.10, None), (10, 0.05, None)):
        found = []
        for _ in range(worlds):
            values = differences(draw, gain, (n,))
            if loss is not None:
                values[::slices] = differences(draw, loss, (n // slices,), 0.45)
            found.append((decided(values, LEVEL, slices), decided(values, LEVEL, slices, looks=1)))
        name = f"{slices} slices, gain {gain:g}" + ("" if loss is None else f", but {loss:g} in one")
        yield (
            name,
            {
                "share": _mean([one.passed for one, _ in found]),
                "one_look": _mean([one.passed for _, one in found]),
                "asked": _mean([one.asked for one, _ in found]),
            },
        )


def verbosity(draw: np.random.Generator, worlds: int) -> Iterator[tuple[str, Any]]:
    """Yield the share of candidates that pass `quality` under a judge that likes long answers, with and without the adjustment.

    The judge prefers one of two answers with the probability of a logistic function of quality and length. A trap is as good as the
    champion and writes answers that are longer by a standard deviation. A winner is better, and its lengths differ by chance or a little.
    `kept` is the share of the candidates that pass `quality` without the adjustment and also with it.
    """
    for what, better, mean_length in (
        ("trap: equal, longer", 0.0, 1.0),
        ("trap: equal, longer by two standard deviations", 0.0, 2.0),
        ("winner: better, equal length", 0.6, 0.0),
        ("winner: better, a little longer", 0.6, 0.3),
        ("winner: a little better, equal length", 0.4, 0.0),
        ("winner: a little better, a little longer", 0.4, 0.3),
        ("winner: a little better, longer", 0.4, 0.6),
    ):
        both, looked = [], []
        for _ in range(worlds):
            longer = draw.normal(mean_length, 1.0, 400)
            chance = 1 / (1 + np.exp(-(better + 0.8 * np.tanh(longer) + draw.normal(0, 1.0, 400))))
            values = (draw.random(400) < chance) * 2.0 - 1.0
            adjusted = length_adjusted_interval(values, list(longer), min(LEVEL, LENGTH_LEVEL))
            raw = passes(values, LEVEL)
            both.append((raw and adjusted is not None and adjusted.low > 0, raw))
            looked.append(decided(values, LEVEL, longer=longer))
        shares = _shares(both)
        asked = _mean([one.asked for one in looked])
        yield (
            what,
            {
                "share": _mean([one.passed for one in looked]),
                "one_look": shares["share"],
                "former": shares["former"],
                "kept": round(shares["share"] / shares["former"], 4),
                "asked": asked,
            },
        )


def safety(draw: np.random.Generator, worlds: int) -> Iterator[tuple[str, Any]]:
    """Yield the shares of candidates that pass and that fail the check `safety`, by their loss of refusals.

    Of the harmful and of the harmless prompts, a share changes by chance in both directions. `student` is the share that passes if both
    ends are those of Student's interval.
    """
    check, n = Safety(LOOP.gate.model_copy(update={"safety": SafetySettings()})), len(standing_prompts()) // 2
    for discordance in (0.0, 0.05, 0.1, 0.2):
        for loss in (0.0, 0.05, 0.1, 0.2, 0.3, 0.4):
            known: dict[tuple[int, ...], tuple[bool, bool, bool]] = {}
            found = []
            for _ in range(worlds):
                both = [differences(draw, -lost, (n,), max(lost, discordance)) for lost in (loss, 0.0)]
                key = tuple(int((values == change).sum()) for values in both for change in (1, -1))
                if key not in known:
                    known[key] = _judged(check, both)
                found.append(known[key])
            shares = zip(("passes", "fails", "student"), zip(*found, strict=True), strict=True)
            yield f"{discordance:.0%} change by chance, loss {loss:g}", {name: _mean(column) for name, column in shares}


def _judged(check: Safety, both: Sequence[np.ndarray]) -> tuple[bool, bool, bool]:
    """Return whether the check passes, whether it fails, and whether Student's intervals would pass."""
    n, found = len(both[0]), {}
    for name, values in zip((REFUSED, ANSWERED), both, strict=True):
        interval = paired_share_interval(int((values == 1).sum()), int((values == -1).sum()), n, LEVEL)
        assert interval is not None
        lost = max(0.0, -interval.estimate)
        found[name] = Comparison(name=name, n=n, champion=lost, candidate=lost + interval.estimate, difference=interval)
    counts = [PromptCount(name=name, asked=n, clusters=n, answered_by_both=n, champion_failed=0, candidate_failed=0) for name in found]
    asked = SafetyReport(prompts=digest("p"), counts=(counts[0], counts[1]), **found, answers=digest("safety"))
    report = report_at(np.full(400, 0.1), LEVEL, 0, None, None).model_copy(update={"safety": asked})
    result = check.check(report).result
    student = [paired_interval(list(values), LEVEL) for values in both]
    return result is Result.PASS, result is Result.FAIL, all(one is not None and one.low > -SafetySettings().margin for one in student)


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 4)


def _shares(both: Sequence[tuple[bool, ...]]) -> dict[str, float]:
    return {"share": round(float(np.mean([one for one, _ in both])), 4), "former": round(float(np.mean([one for _, one in both])), 4)}


SECTIONS = {function.__name__: function for function in (quality, equal, mixed, slices, sliced, verbosity, safety)}


@click.command()
@click.option("--worlds", default=4000, help="Simulated evaluations per figure.")
@click.option("--seed", default=1)
@click.option("--section", "chosen", type=click.Choice(list(SECTIONS)), multiple=True, default=list(SECTIONS), help="Default: all.")
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "results" / "gate_decisions.json")
def main(worlds: int, seed: int, chosen: Sequence[str], out: Path) -> None:
    """Simulate, print the figures and add them to the file. Figures of other code are dropped from it."""
    paths = [*sorted((ROOT.parent / "gates").rglob("*.py")), ROOT.parent / "flows" / "core" / "triggers.py", Path(__file__)]
    code = digest({path.name: digest_file(path) for path in paths})[:12]
    stored = json.loads(out.read_text()) if out.exists() else {}
    result: dict[str, Any] = stored if stored.get("code") == code and stored.get("worlds") == worlds else {}
    result |= {"date": datetime.now(UTC).date().isoformat(), "code": code, "worlds": worlds}
    for section in chosen:
        found = {}
        for name, shares in SECTIONS[section](np.random.default_rng([seed, list(SECTIONS).index(section)]), worlds):
            found[name] = shares
            click.echo(f"{section}: {name}: " + ", ".join(f"{key} {value:.1%}" for key, value in shares.items()))
        result[section] = found
        out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
