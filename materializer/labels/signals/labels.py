"""Labels answers that nothing else scores by the signals that agree with the line's ratings. Pure.

The label is the lower bound of the measured agreement, in the weakest tier. So no signal overrides a rating, a reference, a correction or
a judge, and none is pooled with ratings. Gate and rollout do not read these labels: the gate scores new answers, and the rollout reads
ratings.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import polars as pl

from ratchet.contracts.data.beliefs import SignalBelief
from ratchet.contracts.data.records import SAMPLES, Signal, Tier
from ratchet.materializer.lake.schemas import frame_of


def with_signals(
    samples: pl.DataFrame, signals: pl.DataFrame, beliefs: Sequence[SignalBelief]
) -> tuple[pl.DataFrame, tuple[SignalBelief, ...]]:
    """Return the samples (records.SAMPLES) with rewards from the used signals, and the beliefs with the number of their labels.

    `signals` is the result of `attach`. Of several signals on an answer that say the same, the one with the highest agreement counts:
    they are not independent. Signals that contradict each other give no reward.
    """
    used = {belief.signal: belief for belief in beliefs if belief.used}
    given: dict[str, list[Signal]] = {}
    for source, identity, name in signals.select("source", "id", "signal").unique().sort("source", "id", "signal").iter_rows():
        if (signal := Signal(name)) in used:
            given.setdefault(f"{source}/{identity}", []).append(signal)
    if not given:
        return samples, tuple(beliefs)
    rows, labels = samples.to_dicts(), Counter[Signal]()
    for row in rows:
        unrated = row["origin"] == "traffic" and row["tier"] is None and not row["votes"]
        decided = _strongest(given.get(row["trace"] or "", ()), used) if unrated else None
        if decided is not None:
            right = decided.low if decided.signal.says_right else 1 - decided.low
            parts = json.loads(row["parts"]) | {f"signal:{decided.signal.value}": right}
            row |= {"reward": right, "tier": Tier.SIGNAL.value, "parts": json.dumps(parts, sort_keys=True, separators=(",", ":"))}
            labels[decided.signal] += 1
    counted = tuple(belief.model_copy(update={"labels": labels[belief.signal]}) for belief in beliefs)
    return frame_of(rows, SAMPLES), counted


def _strongest(given: Sequence[Signal], used: Mapping[Signal, SignalBelief]) -> SignalBelief | None:
    if len({signal.says_right for signal in given}) != 1:
        return None
    return max((used[signal] for signal in given), key=lambda belief: (belief.low, belief.signal.value))
