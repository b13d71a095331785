"""Summaries of the recipe benchmark's results, as figures with intervals and as Markdown tables."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

WORTH = 0.05
"""The smallest gain of the oracle at which a cell counts in the share of the oracle's gain."""
HARM = 0.02
"""A slice whose true accuracy falls by more than this counts as a loss."""
DRAWS = 2000
"""The number of bootstrap samples."""

Result = Mapping[str, Any]


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Return the figures of all claims; shares are in [0, 1], and None means that no run applies to the claim."""
    trained = [row for row in results if row["chosen"] != "none" and row["trained"]]
    worth = [row for row in results if row["oracle_gain"] >= WORTH]
    kept = [row for row in trained if row["gate"] == "pass"]
    return {
        "cells": len(results),
        "trained": len(trained),
        "improved": _share(trained, lambda row: row["lower"] > 0),
        "kept": len(kept),
        "kept_with_a_loss": [row["cell"] for row in kept if _lost(row)],
        "kept_with_a_loss_named_as_lower": [row["cell"] for row in kept if _lost(row) and not _beyond(row, "named")],
        "kept_with_a_silent_loss": [row["cell"] for row in kept if _beyond(row, "named", "undecided")],
        "undecided_slices": fmean(len(row["undecided"]) / len(row["slices"]) for row in kept) if kept else None,
        "worth": len(worth),
        "of_the_oracle": _pooled(worth),
        "of_the_oracle_interval": _bootstrap(worth),
        "do_not_train": {
            f"{'trained' if chose else 'did not train'}, training {'helps' if helps else 'does not help'}": sum(
                (row["chosen"] != "none") == chose and (row["lower"] > 0) == helps for row in results
            )
            for chose in (True, False)
            for helps in (True, False)
        },
    }


def _lost(row: Result) -> list[str]:
    """Return the slices whose true accuracy fell by more than HARM."""
    return [name for name, gain in row["slices"].items() if gain < -HARM]


def _beyond(row: Result, *said: str) -> list[str]:
    """Return the slices with a loss that the gate's verdict lists in none of these columns of the row."""
    return [name for name in _lost(row) if not any(name in row[how] for how in said)]


def _share(rows: Sequence[Result], holds: Callable[[Result], bool]) -> float | None:
    return fmean(holds(row) for row in rows) if rows else None


def _pooled(rows: Sequence[Result]) -> float | None:
    """Return the sum of the gains over the sum of the oracle's gains. A cell in which no training was chosen has a gain of zero."""
    oracle = sum(row["oracle_gain"] for row in rows)
    return sum(row["gain"] if row["chosen"] != "none" else 0.0 for row in rows) / oracle if oracle else None


def _bootstrap(rows: Sequence[Result]) -> tuple[float, float] | None:
    """Return the 95 % percentile bootstrap interval over base models (Efron 1979), or None for fewer than two base models.

    The cells of one base model are resampled together, because they are not independent.
    """
    bases: dict[str, list[Result]] = {}
    for row in rows:
        bases.setdefault(f"{row['task']}-{row['quality']}-{row['seed']}", []).append(row)
    if len(bases) < 2:
        return None
    chance, groups = random.Random(0), list(bases.values())
    drawn = sorted(_pooled([row for _ in groups for row in chance.choice(groups)]) or 0.0 for _ in range(DRAWS))
    return drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS)]


def markdown(results: Sequence[Result], stamp: str) -> str:
    """Return the main table in Markdown: one row per task, base quality and label noise, with means over seeds."""
    found = summary(results)
    cells: dict[tuple[str, float, float], list[Result]] = {}
    for row in results:
        cells.setdefault((row["task"], row["quality"], row["flips"]), []).append(row)
    lines = [
        f"{stamp}: {found['cells']} cells.",
        "",
        "| task | base | wrong ratings | seeds | base accuracy | chosen | gain | worst slice | oracle's gain | gate passed |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (task, quality, flips), rows in sorted(cells.items()):
        methods = ", ".join(f"{name} {sum(row['chosen'] == name for row in rows)}" for name in sorted({row["chosen"] for row in rows}))
        mean = {key: fmean(row[key] for row in rows) for key in ("base", "gain", "oracle_gain")}
        worst, passed = min(row["worst_slice"] for row in rows), sum(row["gate"] == "pass" for row in rows)
        lines.append(
            f"| {task} | {quality:g} | {flips:.0%} | {len(rows)} | {mean['base']:.3f} | {methods} | {mean['gain']:+.3f} | {worst:+.3f} "
            f"| {mean['oracle_gain']:+.3f} | {passed} of {len(rows)} |"
        )
    return "\n".join([*lines, "", *_claims(found)])


def arms(results: Sequence[Result], stamp: str) -> str:
    """Return the table of a forced method in Markdown: one row per task, base quality and rehearsal; every traffic sample counts once."""
    cells: dict[tuple[str, float, float | None], list[Result]] = {}
    for row in results:
        cells.setdefault((row["task"], row["quality"], row["rehearsal"]), []).append(row)
    lines = [
        f"{stamp}: {len(results)} runs.",
        "",
        f"| task | base | rehearsal | runs | base accuracy | gain | worst slice: mean | lowest | lost more than {HARM:.0%} | gate passed |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (task, quality, rehearsal), rows in sorted(cells.items()):
        mean = {key: fmean(row[key] for row in rows) for key in ("base", "gain", "worst_slice")}
        lost, passed = sum(bool(_lost(row)) for row in rows), sum(row["gate"] == "pass" for row in rows)
        arm = "-" if rehearsal is None else f"{rehearsal:g}"
        lines.append(
            f"| {task} | {quality:g} | {arm} | {len(rows)} | {mean['base']:.3f} | {mean['gain']:+.3f} | {mean['worst_slice']:+.3f} "
            f"| {min(row['worst_slice'] for row in rows):+.3f} | {lost} of {len(rows)} | {passed} of {len(rows)} |"
        )
    return "\n".join(lines)


def _claims(found: Mapping[str, Any]) -> list[str]:
    improved = "no run trained" if found["improved"] is None else f"{found['improved']:.0%} of {found['trained']} runs that trained"
    reached = "no cell in which the oracle gains so much" if found["of_the_oracle"] is None else f"{found['of_the_oracle']:.0%}"
    interval = found["of_the_oracle_interval"]
    between = f" ({interval[0]:.0%} to {interval[1]:.0%}, bootstrap over base models)" if interval else ""
    silent = ", ".join(found["kept_with_a_silent_loss"]) or "none"
    share = found["undecided_slices"]
    undecided = "" if share is None else f"On average, a passed run's verdict names {share:.0%} of the slices as a possible loss."
    return [
        f"- True accuracy rose significantly (lower end of the paired 95 % interval above 0) in {improved}.",
        f"- Share of the oracle's gain, over the {found['worth']} cells in which that gain is at least {WORTH}: {reached}{between}.",
        f"- Runs that passed the gate: {found['kept']}; of these, with a slice whose true accuracy fell by more than {HARM:.0%}: "
        f"{len(found['kept_with_a_loss'])}; "
        f"with every such slice named as lower: {len(found['kept_with_a_loss_named_as_lower'])}; "
        f"with such a slice that the verdict neither names as lower nor as a possible loss: {silent}. {undecided}",
        "- " + "; ".join(f"{name}: {n}" for name, n in found["do_not_train"].items()) + ".",
    ]
