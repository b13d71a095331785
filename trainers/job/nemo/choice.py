"""Which step of a run is published: the one that the release's validation on the development prompts shows to be best.

The rules are those of the TRL trainer (`trainers/length.py`), without a cooldown, because the schedule of the release is fixed when it
starts. Each sealed checkpoint contains the measurements so far, and the weights of the model that would be published. So a resumed run
chooses as if it had not been interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contracts.errors import Permanent
from trainers.job.nemo.steps import CHOICE, WEIGHTS, link_tree
from trainers.length import LEAST, Length, Measurement, decide, difference, mean

MEASURED = "measured.json"


class Choice:
    """The measurements of one run, and what follows from them."""

    def __init__(self, slices: Mapping[str, str | None], most: int) -> None:
        """`slices` maps the ids of the validation prompts to their slices. `most` is the maximum number of steps."""
        self._prompts = sorted(slices)
        self._slices = [slices[prompt] for prompt in self._prompts]
        self._most = most
        self._measured: list[Measurement] = []
        self._kept: tuple[int, Path] | None = None  # the step whose weights are kept, and where
        self.length: Length | None = None
        """The newest decision; None before the start model and another step were measured, or with too few scores."""

    @property
    def ended(self) -> bool:
        """Whether further steps would not raise the scores."""
        return self.length is not None and self.length.action in ("end", "cool")

    def read(self, folder: Path) -> None:
        """Go on from the checkpoint in `folder`. One of an earlier release has no measurements. Raises Permanent if they are not valid."""
        file = folder / CHOICE / MEASURED
        if not file.exists():
            return
        try:
            known = json.loads(file.read_bytes())
            self._measured = [Measurement(int(one["step"]), tuple(one["scores"])) for one in known["measured"]]
            kept = int(known["kept"])
            if known["prompts"] != self._prompts:
                raise ValueError("it is about other prompts")
        except (ValueError, KeyError, TypeError) as error:
            raise Permanent(f"{file} is not valid: {error}") from error
        self._kept = (kept, folder / CHOICE if (folder / CHOICE / WEIGHTS).exists() else folder) if kept else None
        self._decide()

    def add(self, step: int, scores: Mapping[str, float | None]) -> dict[str, Any] | None:
        """Add the scores of a validation after `step` and return the figures of the event; None if it says nothing.

        Step 0 is the start model. Each other step must be one that the release saves. Too few scores, and steps that were measured before,
        are left out.
        """
        one = Measurement(step, tuple(scores.get(prompt) for prompt in self._prompts))
        known = sum(score is not None for score in one.scores)
        if known < LEAST or any(earlier.step >= step for earlier in self._measured) or (step and not self._measured):
            return None
        self._measured.append(one)
        self._decide()
        told = {"kept": self.length.kept, "action": self.length.action, "reason": self.length.reason} if self.length else {}
        return {"score": mean(one), "by": "validation reward", "prompts": len(one.scores), "scores": list(one.scores), **told}

    def _decide(self) -> None:
        if len(self._measured) > 1:
            self.length = decide(self._measured, self._slices, self._most)

    def carry(self, written: Path, step: int) -> None:
        """Add the measurements, and the weights of the model to publish unless it is that of `step`, to the checkpoint in `written`."""
        if not self._measured:
            return
        folder = written / CHOICE
        folder.mkdir(parents=True)
        measured = [{"step": one.step, "scores": list(one.scores)} for one in self._measured]
        kept = self._kept_at(step, written)
        (folder / MEASURED).write_text(json.dumps({"prompts": self._prompts, "measured": measured, "kept": kept[0] if kept else 0}))
        if kept is not None and kept[0] != step:
            link_tree(kept[1] / WEIGHTS, folder / WEIGHTS)

    def sealed(self, step: int, folder: Path) -> None:
        """Remember where the weights of the model to publish are after the checkpoint of `step` was sealed in `folder`."""
        kept = self._kept_at(step, folder)
        self._kept = kept if kept is None or kept[0] == step else (kept[0], folder / CHOICE)

    def _kept_at(self, step: int, folder: Path) -> tuple[int, Path] | None:
        """Return the step to publish and where its weights are, given those of `step` in `folder`; None if they were never sealed."""
        if self.length is None:
            return None
        if self.length.kept == step:
            return step, folder
        return self._kept if self._kept is not None and self._kept[0] == self.length.kept else None

    def published(self, last: int, folder: Path) -> tuple[int, Path]:
        """Return the step to publish and the folder with its weights; the step `last` in `folder` if there is none to prefer."""
        return self._kept_at(last, folder) or (last, folder)

    def figures(self, step: int) -> dict[str, float]:
        """Return the figures of a finished run that publishes `step`: its score and that of the start model; empty if not measured."""
        kept = next((one for one in self._measured if one.step == step), None)
        if kept is None:
            return {}
        gain, error = difference(kept, self._measured[0])
        shown = {"published_step": float(step), "development_score": mean(kept), "development_start": mean(self._measured[0])}
        return shown | {"development_prompts": float(len(kept.scores)), "development_gain": gain, "development_gain_error": error}


def slices_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """Return prompt id -> slice of the rows of a file with validation prompts."""
    return {str(row["prompt_id"]): row.get("slice") for row in rows}
