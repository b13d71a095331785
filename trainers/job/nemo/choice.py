"""Which step of a run is published, and when a run with an open end is over: by the release's validation on the development prompts.

The last step is published, unless an earlier one is better than the newest measured step by more than one standard error of the paired
difference. So noise alone never gives up what a longer training gained. A step that is worse than the start model in a slice is published
only if every step is. Each sealed checkpoint contains the measurements so far and the weights of the best step, for a run that resumes from
it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import Permanent
from ratchet.contracts.wording import first_problem
from ratchet.trainers.job.nemo.steps import CHOICE, WEIGHTS, link_tree
from ratchet.trainers.length import LEAST, PATIENCE, SOON, Measurement, difference, mean, points, rises, worse_slices

MEASURED = "measured.json"
TIE = 1 + 1e-9
"""Factor on the error that a loss must exceed. If two steps differ on a single prompt, loss and error are equal, up to rounding."""


def due(most: int, save_every: int) -> set[int]:
    """Return the steps at which a run with an open end is measured: about doubling, each one that the release saves."""
    return {min(most, -(-step // save_every) * save_every) for step in points(most)} | {most}


def best_of(measured: Sequence[Measurement], slices: Sequence[str | None]) -> Measurement:
    """Return the measurement with the highest mean; of equal ones, the newest. The first is the start model, and others follow."""
    start, trained = measured[0], measured[1:]
    able = [one for one in trained if not worse_slices(one, start, slices)] or list(trained)
    return max(reversed(able), key=mean)


def is_needed(measured: Sequence[Measurement], slices: Sequence[str | None]) -> bool:
    """Return whether the best step is published although it is not the newest one."""
    best, newest = best_of(measured, slices), measured[-1]
    lost, error = difference(best, newest)
    return best is not newest and (lost > error * TIE or bool(worse_slices(newest, measured[0], slices)))


def is_over(measured: Sequence[Measurement], most: int) -> bool:
    """Return whether the newest measurements of a run with an open end are not above the best earlier one."""
    trained = measured[1:]
    soon = min(SOON, most // 4)
    return len(trained) > PATIENCE and trained[-1].step >= soon and not rises([mean(one) for one in trained])


def _finite(score: float | None) -> float | None:
    """Return a score, or None for a number that is not finite, which JSON of Python may contain: it compares with no other."""
    return score if score is not None and math.isfinite(score) else None


class Choice:
    """The measurements of one run, and what follows from them."""

    def __init__(self, slices: Mapping[str, str | None], most: int) -> None:
        """`slices` maps the ids of the validation prompts to their slices. `most` is the maximum number of steps."""
        self._prompts = sorted(slices)
        self._slices = [slices[prompt] for prompt in self._prompts]
        self._most = most
        self._measured: list[Measurement] = []
        self._weights: tuple[int, Path] | None = None  # the best step when it was sealed, and where its weights are
        self.over = False
        """Whether a run with an open end needs no further step. It stays so."""

    @classmethod
    def read(cls, folder: Path, most: int) -> Choice | None:
        """Return the choice that the checkpoint in `folder` contains, or None. Raises Permanent if it is not valid."""
        file = folder / CHOICE / MEASURED
        if not file.exists():
            return None
        try:
            known = json.loads(file.read_bytes())
            found = cls({str(prompt): part for prompt, part in known["prompts"].items()}, most)
            for one in known["measured"]:
                found._take(Measurement(int(one["step"]), tuple(map(_finite, one["scores"]))))
            best = int(known["best"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Permanent(f"{file} is not valid: {first_problem(error)}") from error
        found._weights = (best, folder / CHOICE if (folder / CHOICE / WEIGHTS).exists() else folder) if best else None
        return found

    def add(self, step: int, scores: Mapping[str, float | None]) -> dict[str, Any] | None:
        """Add the scores of a validation after `step` and return the figures of the event; None if it says nothing.

        Step 0 is the start model. Each other step must be one that the release saves. Too few scores, and steps that were measured before,
        are left out.
        """
        one = Measurement(step, tuple(_finite(scores.get(prompt)) for prompt in self._prompts))
        known = sum(score is not None for score in one.scores)
        if known < LEAST or any(earlier.step >= step for earlier in self._measured) or (step and not self._measured):
            return None
        self._take(one)
        told = {"kept": self._kept(step), "reason": self._reason(), "action": "end" if self.over else "train"}
        return {"score": mean(one), "by": "validation reward", "prompts": known, "scores": list(one.scores), **told}

    def _kept(self, last: int) -> int:
        """Return the step to publish if `last` is the last one."""
        needed = len(self._measured) > 1 and is_needed(self._measured, self._slices)
        return best_of(self._measured, self._slices).step if needed else last

    def _reason(self) -> str:
        newest, start = self._measured[-1], self._measured[0]
        if newest is start:
            return f"the start model scores {mean(start):.3f}"
        best = best_of(self._measured, self._slices)
        gain, error = difference(best, start)
        return f"the best step, {best.step}, scores {mean(best):.3f} ({gain:+.3f} against the start model, standard error {error:.3f})"

    def _take(self, one: Measurement) -> None:
        self._measured.append(one)
        self.over = self.over or is_over(self._measured, self._most)

    def carry(self, written: Path, step: int) -> None:
        """Add the measurements, and the weights of the best step unless it is `step`, to the checkpoint in `written`."""
        if not self._measured:
            return
        folder = written / CHOICE
        folder.mkdir(parents=True)
        measured = [{"step": one.step, "scores": list(one.scores)} for one in self._measured]
        best = self._best_at(step, written)
        prompts = dict(zip(self._prompts, self._slices, strict=True))
        (folder / MEASURED).write_text(json.dumps({"prompts": prompts, "measured": measured, "best": best[0] if best else 0}))
        if best is not None and best[0] != step:
            link_tree(best[1] / WEIGHTS, folder / WEIGHTS)

    def sealed(self, step: int, folder: Path) -> None:
        """Remember where the weights of the best step are after the checkpoint of `step` was sealed in `folder`."""
        best = self._best_at(step, folder)
        self._weights = best if best is None or best[0] == step else (best[0], folder / CHOICE)

    def _best_at(self, step: int, folder: Path) -> tuple[int, Path] | None:
        """Return the best step and where its weights are, given those of `step` in `folder`; None if they were never sealed."""
        if len(self._measured) < 2:
            return None
        best = best_of(self._measured, self._slices).step
        if best == step:
            return step, folder
        return self._weights if self._weights is not None and self._weights[0] == best else None

    def published(self, last: int, folder: Path) -> tuple[int, Path]:
        """Return the step to publish and the folder with its weights, given those of the step `last` in `folder`."""
        best = self._best_at(last, folder)
        return best if best is not None and best[0] == self._kept(last) else (last, folder)

    def figures(self, step: int) -> dict[str, float]:
        """Return the figures of a finished run that publishes `step`: the newest scores up to it, and those of the start model."""
        known = [one for one in self._measured if 0 < one.step <= step]
        if not known:
            return {}
        kept, start = known[-1], self._measured[0]
        gain, error = difference(kept, start)
        shown = {"published_step": float(step), "development_score": mean(kept), "development_start": mean(start)}
        prompts = float(sum(score is not None for score in kept.scores))
        return shown | {"development_prompts": prompts, "development_gain": gain, "development_gain_error": error}


def slices_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """Return prompt id -> slice of the rows of a file with validation prompts."""
    return {str(row["prompt_id"]): row.get("slice") for row in rows}
