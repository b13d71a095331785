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


class SignalLabels:
    """Gives samples rewards from the signals that are used, and counts these labels.

    Of several signals on an answer that say the same, the one with the highest agreement counts: they are not independent. Signals that
    contradict each other give no reward.
    """

    def __init__(self, beliefs: Sequence[SignalBelief]) -> None:
        self._beliefs = beliefs
        self._used = {belief.signal: belief for belief in beliefs if belief.used}
        self._labels = Counter[Signal]()

    def label(self, samples: pl.DataFrame, signals: pl.DataFrame) -> pl.DataFrame:
        """Return the samples (records.SAMPLES) with rewards. `signals` is the result of `attach` and has all signals on the samples."""
        used = [signal.value for signal in self._used]
        given: dict[str, list[Signal]] = {}
        known = signals.filter(pl.col("signal").is_in(used)).select("source", "id", "signal").unique().sort("source", "id", "signal")
        for source, identity, name in known.iter_rows():
            given.setdefault(f"{source}/{identity}", []).append(Signal(name))
        if not given:
            return samples
        rows = samples.to_dicts()
        for row in rows:
            unrated = row["origin"] == "traffic" and row["tier"] is None and not row["votes"]
            decided = _strongest(given.get(row["trace"] or "", ()), self._used) if unrated else None
            if decided is not None:
                right = decided.low if decided.signal.says_right else 1 - decided.low
                parts = json.loads(row["parts"]) | {f"signal:{decided.signal.value}": right}
                row |= {"reward": right, "tier": Tier.SIGNAL.value, "parts": json.dumps(parts, sort_keys=True, separators=(",", ":"))}
                self._labels[decided.signal] += 1
        return frame_of(rows, SAMPLES)

    @property
    def beliefs(self) -> tuple[SignalBelief, ...]:
        """The beliefs, with the number of their labels so far."""
        return tuple(belief.model_copy(update={"labels": self._labels[belief.signal]}) for belief in self._beliefs)


def _strongest(given: Sequence[Signal], used: Mapping[Signal, SignalBelief]) -> SignalBelief | None:
    if len({signal.says_right for signal in given}) != 1:
        return None
    return max((used[signal] for signal in given), key=lambda belief: (belief.low, belief.signal.value))
