"""Controls the length of a run with `steps = "auto"`: measures at the planned steps, lets the rate fall, and keeps the best model.

The measurements are in the state of the library's trainer, which each checkpoint contains. Each checkpoint also contains the weights of
the model that would be published. So a resumed run continues as if it had not been interrupted.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

from ratchet.trainers.cross_validation import Chosen
from ratchet.trainers.health import MEASURING
from ratchet.trainers.job import parallel
from ratchet.trainers.job.job_folder import Job
from ratchet.trainers.job.trl.development import Development
from ratchet.trainers.job.trl.figures import STATE
from ratchet.trainers.job.trl.private_methods import load_weights
from ratchet.trainers.length import (
    LEAST,
    Length,
    Measurement,
    cooldown_steps,
    cooling,
    decide,
    difference,
    mean,
    points,
    share_of_rate,
    unmeasured_steps,
)
from ratchet.trainers.recipes.recipe import Recipe

LEAST_WATCHED = 5
"""Minimum number of development prompts on which the result of a cross-validated run is compared with the start model."""
WORSE_ERRORS = 2.0
"""Standard errors from which it is called worse."""
SCORES = "development_scores"
AGREEMENT = "development_agreement"
"""Keys of a measurement in the history of the library's trainer state."""
KEPT = ("kept", "weights")
"""Folder in a checkpoint with the weights of the model to publish, if they are not its own. The library would read a direct subfolder as
an adapter."""
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "config.json", "adapter_config.json", "pytorch_model_fsdp.bin")


def _rows_of_a_pass(trainer: Any) -> int:
    """Return the rows that the sampler draws in one round (sampler.py): all, or fewer if they have different weights."""
    data = trainer.train_dataset
    weights: Any = getattr(trainer, "weights", None) or (data["weight"] if "weight" in getattr(data, "column_names", ()) else ())
    most = max(weights) if weights else 0
    return math.ceil(sum(weights) / most) if most > 0 else len(data)


class LengthControl:
    """Length of one run."""

    def __init__(self, job: Job, recipe: Recipe, trainer: Any, resumed: Path | None, chosen: Chosen | None = None) -> None:
        """`resumed` is the folder of the checkpoint from which the run goes on. If the run had ended there, no further step is trained.

        `chosen` is the result of a cross-validation; None without one.
        """
        self._job = job
        self._recipe = recipe
        self._most = recipe.last_step
        self._development = Development(job, trainer.processing_class, recipe)
        rows = _rows_of_a_pass(trainer)
        batch = int(getattr(recipe, "batch", 0) or getattr(recipe, "prompts_per_step", 1))
        together = parallel.alone() or not parallel.apart()  # all processes read the weights that are published
        self._chosen = chosen
        self._fixed = None if self._development.enough and together else unmeasured_steps(rows, batch, self._most)
        if chosen is not None:
            self._fixed = chosen.steps
        self._why = (
            f"only {len(self._development.rows)} development prompts of {LEAST}" if together else "nodes without a shared file system"
        ) + (", and a cross-validation needs one process" if job.plan.cross_validation and not parallel.alone() else "")
        self._points = points(self._most)
        self._trainer = trainer
        self._measured: list[Measurement] = []
        self._kept_at: Path | None = None
        self.length: Length | None = None
        """The newest decision."""
        if resumed is not None:
            self.sealed(resumed)
            if self._ended_in(resumed):
                trainer.args.max_steps = json.loads((resumed / STATE).read_bytes())["global_step"]

    def begin(self, state: Any) -> None:
        """Continue from the trainer's state, and measure the start model in a new run."""
        self._measured = [_measurement(entry) for entry in state.log_history if SCORES in entry]
        schedule = getattr(self._trainer.lr_scheduler, "scheduler", self._trainer.lr_scheduler)
        schedule.lr_lambdas = [lambda step: self._share(step) for _ in schedule.lr_lambdas]  # functions are not saved in checkpoints
        if self._fixed is not None:
            self.length = Length("train", 0, "")
            if self._chosen is not None and self._development.rows and not self._measured:
                self._measure(state)
            if int(state.global_step) >= self._fixed:
                self.after(state)
            elif parallel.rank() == 0 and self._chosen is None:
                reason = f"{self._why}: trains for {self._fixed} steps, not measured"
                self._job.events.write("warning", int(state.global_step), reason=reason)
        elif not self._measured:
            self._measure(state)
        else:
            self.length = decide(self._measured, self._development.slices, self._most)

    def _ended_in(self, folder: Path) -> bool:
        """Return whether the run that wrote the checkpoint in `folder` had ended, so that only the publication is missing."""
        state = json.loads((folder / STATE).read_bytes())
        if self._fixed is not None:
            return int(state["global_step"]) >= self._fixed
        measured = [_measurement(entry) for entry in state["log_history"] if SCORES in entry]
        return bool(measured) and decide(measured, self._development.slices, self._most).action == "end"

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return self.length is not None and self.length.action == "end"

    def after(self, state: Any) -> bool:
        """Measure the model if a measurement is due after this step, and return whether a checkpoint must be saved."""
        step = int(state.global_step)
        if self._fixed is not None:
            if step >= self._fixed:
                if self._chosen is not None and self._development.rows and all(one.step < step for one in self._measured):
                    self._measure(state, cooled=True)
                    if self._is_worse() and parallel.rank() == 0:
                        self._job.events.write(
                            "warning", step, reason="the final model is worse on the development prompts than the start model"
                        )
                self.length = Length("end", step, self._reason())
            return self.finished
        cooled = self._cooling()
        if step in self._points and cooled is None:
            self._measure(state)
        elif cooled is not None and step >= sum(cooled):
            self._measure(state, cooled=True)
        else:
            return False
        return True

    def _reason(self) -> str:
        """Why a run of a fixed number of steps has this number."""
        if self._chosen is None:
            return f"{self._fixed} steps, which were not measured: {self._why}"
        reason = f"{self._chosen.reason}; then a cooldown of {self._chosen.cooldown} steps"
        if len(self._measured) < 2:
            return reason
        gain, error = difference(self._measured[-1], self._measured[0])
        known = sum(score is not None for score in self._measured[-1].scores)
        shown = f"{gain:+.2f}" + (f" ± {error:.2f}" if math.isfinite(error) else "")
        return f"{reason}; on {known} development prompts {shown} against the start model" + (
            ", which is worse" if self._is_worse() else ""
        )

    def _is_worse(self) -> bool:
        """Whether the final model is worse than the start model on the development prompts, beyond chance."""
        lost, error = difference(self._measured[0], self._measured[-1])
        return len(self._measured[0].scores) >= LEAST_WATCHED and lost > WORSE_ERRORS * error and lost > 0

    def scores_of(self, step: int) -> dict[str, float]:
        """Return the mean scores of the model after `step`, by the name of their figure. Those of folds are of their models."""
        own = next((mean(one) for one in self._measured if one.step == step), None)
        folds = None if self._chosen is None else self._chosen.score_of(step)
        found = {"development_score": own, "cross_validated_score": folds}
        return {name: value for name, value in found.items() if value is not None}

    def figures(self) -> dict[str, float]:
        """Return the figures of the finished run: the published step, its score and that of the start model."""
        if self.length is None:
            return {}
        if self._chosen is not None:
            return self._figures_of_folds(self._chosen)
        if not self._measured:
            return {}
        kept = next(one for one in self._measured if one.step == self.length.kept)
        gain, error = difference(kept, self._measured[0])
        shown = {"published_step": float(kept.step), "development_score": mean(kept), "development_start": mean(self._measured[0])}
        prompts = {"development_prompts": float(len(kept.scores))}
        return shown | prompts | {"development_gain": gain, "development_gain_error": error}

    def _figures_of_folds(self, chosen: Chosen) -> dict[str, float]:
        gain, error = chosen.gain
        found = {
            "published_step": float(chosen.steps),
            "cross_validated_steps": float(chosen.constant),
            "cross_validated_folds": float(chosen.folds),
            "cross_validated_prompts": float(chosen.prompts),
            "cross_validated_gain": gain,
            "cross_validated_gain_error": error,
        }
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def carry(self, written: Path, step: int) -> None:
        """Add the weights of the model to publish to the checkpoint in `written`, unless it is its own."""
        if self._fixed is not None or self.length is None or self.length.kept in (0, step) or self._kept_at is None:
            return
        folder = written.joinpath(*KEPT)
        folder.mkdir(parents=True, exist_ok=True)
        for path in (found for pattern in WEIGHTS for found in self._kept_at.glob(pattern)):
            _link(path, folder / path.name)

    def sealed(self, folder: Path) -> None:
        """Remember where the weights of the model to publish are after a checkpoint was sealed."""
        carried = folder.joinpath(*KEPT)
        self._kept_at = carried if carried.exists() else folder

    def restore(self, step: int) -> None:
        """Load the model to publish into the trainer, if it is not the model after `step`."""
        if self.length is not None and self._fixed is None and self.length.kept != step and self._kept_at is not None:
            load_weights(self._trainer, self._kept_at)

    def _cooling(self) -> tuple[int, int] | None:
        if self._fixed is not None:
            steps = cooldown_steps(int(self._fixed / 1.2)) if self._chosen is None else self._chosen.cooldown
            return self._fixed - steps, steps
        return cooling(self._measured, self._development.slices, self._most)

    def _share(self, step: int) -> float:
        return share_of_rate(step, self._recipe.warmup_steps, self._cooling())

    def _measure(self, state: Any, cooled: bool = False) -> None:
        began = time.monotonic()
        if parallel.rank() == 0:
            self._job.events.write(MEASURING, int(state.global_step))  # the supervisor waits longer for it than for a step
        scores, agreement = self._development.scores(self._trainer)
        one = Measurement(int(state.global_step), scores, cooled, agreement)
        self._measured.append(one)
        state.log_history.append({"step": one.step, SCORES: list(scores), AGREEMENT: list(agreement), "cooled": cooled})
        self.length = decide(self._measured, self._development.slices, self._most)
        if self._fixed is not None:
            self.length = Length("end" if cooled else "train", one.step, self._reason())
        if parallel.rank() == 0:
            self._job.events.write(
                "measured",
                one.step,
                score=mean(one),
                by=self._development.by,
                prompts=len(scores),
                scores=list(scores),
                kept=self.length.kept,
                action=self.length.action,
                reason=self.length.reason,
                seconds=round(time.monotonic() - began, 3),
            )


def _measurement(entry: dict[str, Any]) -> Measurement:
    return Measurement(int(entry["step"]), tuple(entry[SCORES]), bool(entry["cooled"]), tuple(entry[AGREEMENT]))


def _link(source: Path, target: Path) -> None:
    """Make `target` the same file as `source`, or a copy on file systems without links."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
