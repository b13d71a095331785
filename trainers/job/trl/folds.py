"""Cross-validation in a job: trains a model per fold, measures it, and keeps the measurements in checkpoints.

It runs before the training proper, in the same process. A fold is a job in a folder of its own, whose data lack the fold's prompts. After
each fold, the measurements of all folds so far are sealed as a checkpoint, whose step is the number of these folds. So a restart repeats
only the fold that was running. Every later checkpoint contains the measurements as well.
If there are answers of teachers to imitate, one more model is trained without them, and decides which of them are left out
(trainers/sifting.py). It has a checkpoint of its own after those of the folds.
"""

from __future__ import annotations

import gc
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import digest
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.schema import stamped, unstamped
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.jobs.job_protocol import TIMEOUT, IncarnationFile, RunFile, step_folder
from ratchet.trainers.cross_validation import Chosen, Fold, choose, folds_of
from ratchet.trainers.health import FOLD, LOADING, MEASURING, HealthVerdict, Watch
from ratchet.trainers.job import checkpoints
from ratchet.trainers.job.events import Events
from ratchet.trainers.job.job_folder import Job, JobResult
from ratchet.trainers.job.start_tokenizer import load_tokenizer
from ratchet.trainers.job.trl.development import Development
from ratchet.trainers.job.trl.figures import STATE, figures
from ratchet.trainers.job.trl.sifting import Sieve, read, stored
from ratchet.trainers.length import Measurement, decide, mean, points
from ratchet.trainers.recipes.recipe import Recipe
from ratchet.trainers.recipes.sft import SFTRecipe
from ratchet.trainers.sifting import Sifted, unchanged

FOLDS = "folds.json"
"""File of a checkpoint with the measurements of the folds."""
DATA = (RunFile.PAIRS, RunFile.DEMONSTRATIONS)
"""Files of a job that lack the prompts of a fold."""


class Folds:
    """The cross-validation of one run."""

    def __init__(
        self, job: Job, recipe: Recipe, trainer: Callable[[Job], Any], is_asked_to_stop: Callable[[], bool], resumed: Path | None
    ) -> None:
        """`trainer` builds the trainer of a fold's job. `resumed` is the folder of the checkpoint from which the run goes on.

        Without enough prompts, there are no folds.
        """
        self._job, self._recipe, self._trainer, self._is_asked_to_stop = job, recipe, trainer, is_asked_to_stop
        tokenizer = load_tokenizer(job.run / RunFile.MODEL)
        self._prompts = Development(job, tokenizer, recipe, RunFile.CROSS_VALIDATION)
        self.folds = self._divided()
        self.done: list[list[Measurement]] = []
        """Measurements of the finished folds."""
        self._begins = resumed is None or not (resumed / STATE).exists()
        self.sifted: Sifted | None = None
        """Which answers of teachers are left out; None before the comparison, or without one."""
        self._sieve = self._comparison(tokenizer)
        if resumed is not None and (resumed / FOLDS).exists() and self.folds:
            self._read(resumed / FOLDS)

    def _comparison(self, tokenizer: Any) -> Sieve | None:
        """What is compared before the training proper; None if there is too little, or if that training has begun."""
        if not self.folds or not self._begins or not isinstance(self._recipe, SFTRecipe):
            return None
        sieve = Sieve(self._job, tokenizer, self._recipe, self.folds[0].held)
        return sieve if sieve.is_worth else None

    @property
    def last_step(self) -> int:
        """Step of the last checkpoint of the folds. Later checkpoints have larger steps."""
        return len(self.folds) + (self._sieve is not None)

    @property
    def chosen(self) -> Chosen | None:
        """The result; None if there is none, or before the last fold has ended."""
        if not self.folds or len(self.done) < len(self.folds):
            return None
        if min(len(fold) for fold in self.done) <= 2:  # the start model and one step: there is nothing to choose from
            return None
        return choose(self.done, [name for fold in self.folds for name in self._prompts.only(fold.measured).slices])

    def run(self) -> JobResult | None:
        """Train and measure the folds that are missing. Return why the run ends, or None if it goes on with the training proper."""
        from transformers import set_seed

        begins = self._begins
        while len(self.done) < len(self.folds):
            number = len(self.done) + 1
            asked = JobResult(Outcome.PREEMPTED, f"asked to stop in fold {number} of {len(self.folds)}", number - 1, {})
            if self._is_asked_to_stop():
                return asked
            measured, ended, wrong = self._run(number, self.folds[number - 1])
            if self._is_asked_to_stop() and not ended:
                return asked
            if len(measured) < 2:
                reason = wrong.reason if wrong else "it ended before its first measurement"
                proposal = wrong.proposal.model_copy(update={"good": 0}) if wrong and wrong.proposal else None
                return JobResult(Outcome.FAILED, f"fold {number} of the cross-validation: {reason}", 0, {}, proposal)
            self.done.append(measured)
            self._seal()
        if begins and (chosen := self.chosen) is not None:
            means = {str(one.step): mean(one) for one in chosen.measured}
            self._job.events.write("cross_validated", chosen.constant, reason=chosen.reason, scores=means, steps=chosen.steps)
        if self._sieve is not None and self.sifted is None and (end := self._sift(self._sieve)) is not None:
            return end
        if self.folds:
            set_seed(self._job.plan.seed)
            self._job.events.write(LOADING, len(self.done))
        return None

    def _sift(self, sieve: Sieve) -> JobResult | None:
        """Train a model without the answers of teachers, for the chosen number of steps, and compare these answers under it.

        Return why the run ends, or None if it goes on.
        """
        asked = JobResult(Outcome.PREEMPTED, "asked to stop while answers of teachers are compared", len(self.done), {})
        found: Sifted | None = None

        def goes_on() -> bool:
            self._job.events.write(MEASURING, len(self.done))
            return not self._is_asked_to_stop()

        def look(trainer: Any) -> None:
            nonlocal found
            found = sieve.sifted(trainer, goes_on)

        if self._is_asked_to_stop():
            return asked
        if (chosen := self.chosen) is None:
            found = unchanged(sieve.answers, "the folds have chosen no number of steps")
        else:
            _, _, wrong = self._run(self.last_step, Fold(sieve.held, ()), chosen.constant, look)
            if found is None and self._is_asked_to_stop():
                return asked
            why = wrong.reason if wrong else "it ended early"
            found = found or unchanged(sieve.answers, f"the model of the comparison has failed: {why}")
        self.sifted = found
        self._job.events.write("sifted", len(self.done), reason=found.why, answers=found.answers, left_out=found.left_out)
        self._seal()
        return None

    def carry(self, written: Path) -> None:
        """Add the measurements to the checkpoint in `written`."""
        folds = [[[one.step, list(one.scores), list(one.agreement)] for one in fold] for fold in self.done]
        sifted = {"sifted": stored(self.sifted)} if self.sifted is not None else {}
        write_atomic(written / FOLDS, stamped({"recipe": digest(self._recipe), "folds": folds, **sifted}))

    def _divided(self) -> tuple[Fold, ...]:
        """The folds; empty if the prompts are too few, or if a fold leaves nothing to train on."""
        if not self._prompts.enough:
            return ()
        clusters, known = {row["prompt_id"]: row["cluster"] for row in _rows(self._job.run / RunFile.CROSS_VALIDATION)}, self._prompts.rows
        found = folds_of(clusters, [row["prompt_id"] for row in known], int(getattr(self._recipe, "folds", 0)), str(self._job.plan.seed))
        files = [self._job.run / name for name in DATA if (self._job.run / name).exists()]
        ids = [[row.get("prompt_id") for row in _rows(path)] for path in files]
        left = all(any(prompt not in fold.held for prompt in of) for fold in found for of in ids[:1])
        return found if left and all(None not in of for of in ids) else ()

    def _read(self, path: Path) -> None:
        """Take over the measurements of a checkpoint. Unfinished folds of an attempt with another recipe are repeated."""
        state: dict[str, Any] = unstamped(path.read_bytes(), "Folds")
        done = [[Measurement(step, tuple(scores), False, tuple(same)) for step, scores, same in fold] for fold in state["folds"]]
        if len(done) == len(self.folds) or state["recipe"] == digest(self._recipe):
            self.done = done
        if "sifted" in state and len(self.done) == len(self.folds):
            self.sifted = read(state["sifted"])

    def _seal(self) -> None:
        written = self._job.folder / IncarnationFile.WORK / "folds"
        shutil.rmtree(written, ignore_errors=True)
        written.mkdir(parents=True)
        self.carry(written)
        step = len(self.done) + (self.sifted is not None)
        folder = self._job.folder / step_folder(step)
        manifest = checkpoints.seal(written, folder)
        self._job.events.write("checkpoint", step, path=folder.relative_to(self._job.run.parent).as_posix(), manifest=manifest)

    def _run(
        self, number: int, fold: Fold, until: int | None = None, look: Callable[[Any], None] | None = None
    ) -> tuple[list[Measurement], bool, HealthVerdict | None]:
        """Train and measure one fold. Return its measurements, whether it ended by itself, and the health verdict that ended it.

        `until` is the step at which it ends; None: that of the earlier folds. `look` gets the trainer of a fold that ended by itself.
        """
        import torch
        from transformers import set_seed

        self._job.events.write(LOADING, len(self.done))
        set_seed(self._job.plan.seed)  # a trainer draws numbers while it is built, so they must not depend on earlier folds
        part = self._part(number, fold)
        try:
            trainer = self._trainer(part)
        except Permanent as error:
            raise Permanent(f"fold {number} of the cross-validation: {error}; set folds = 0 in the recipe") from error
        control = _Control(self, number, self._prompts.only(fold.measured), trainer, until or self._ends_at())
        trainer.add_callback(control.callback())
        trainer.train()
        if look is not None and control.ended and control.wrong is None:
            look(trainer)
        del trainer, control._trainer
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        shutil.rmtree(part.run, ignore_errors=True)
        return control.measured, control.ended or control.wrong is not None, control.wrong

    def _part(self, number: int, fold: Fold) -> Job:
        """Return the job of a fold: the data without the fold's prompts, in a folder of its own."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        place = self._job.folder / IncarnationFile.WORK / f"fold_{number}"
        shutil.rmtree(place, ignore_errors=True)
        part = replace(self._job, run=place, events=_Quiet(self._job.events.path, self._job.incarnation, self._job.events.total))
        part.folder.mkdir(parents=True)
        (place / RunFile.MODEL).symlink_to((self._job.run / RunFile.MODEL).resolve(), target_is_directory=True)
        held = pa.array(sorted(fold.held), pa.string())
        for name in DATA:
            if (self._job.run / name).exists():
                table = pq.read_table(self._job.run / name)
                pq.write_table(table.filter(pc.invert(pc.is_in(table["prompt_id"], held))), place / name)
        return part

    def _ends_at(self) -> int | None:
        """The step at which a fold ends: the last one that all earlier folds reached. None for the first fold."""
        return min((fold[-1].step for fold in self.done), default=None)


class _Quiet(Events):
    """Event log of a fold, without the messages of a trainer's start. The training proper repeats them."""

    def write(self, kind: str, step: int = 0, **data: Any) -> None:
        """Write nothing."""


class _Control:
    """Measures the model of one fold, and ends its training.

    The first fold ends as a run with development prompts does, once its scores no longer rise. It also ends if the attempt's timeout
    would not suffice for longer folds. The others train as long, so that all folds are measured at the same steps. A health verdict ends
    a fold too. The model that compares answers of teachers has no prompts, is not measured, and ends at the chosen step.
    """

    def __init__(self, folds: Folds, number: int, prompts: Development, trainer: Any, until: int | None) -> None:
        self._job, self._recipe, self._folds, self._number = folds._job, folds._recipe, folds, number
        self._prompts, self._trainer = prompts, trainer
        self._points, self._until = points(self._recipe.last_step), until
        self._watch = Watch(self._recipe.health, float(getattr(self._recipe, "beta", 0.0)), self._job.adjustment.rules)
        self._began = time.monotonic()
        self._since, left = time.monotonic(), TIMEOUT.get(os.environ) - self._job.elapsed
        self._seconds = left / (folds.last_step + 2)
        self._measures = bool(prompts.rows)
        self.measured: list[Measurement] = []
        self.wrong: HealthVerdict | None = None
        self.ended = self.late = False
        """Whether the last measurement was made, and whether that is for lack of time."""

    def callback(self) -> Any:
        from transformers import TrainerCallback

        fold = self

        class Callback(TrainerCallback):
            def on_train_begin(self, _args: Any, state: Any, control: Any, **_: Any) -> Any:
                if fold._measures:
                    fold._measure(state.global_step)
                return control

            def on_step_begin(self, _args: Any, _state: Any, control: Any, **_: Any) -> Any:
                fold._began = time.monotonic()
                return control

            def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> Any:
                control.should_save = False
                if not fold._measures:
                    fold.ended = fold._until is not None and state.global_step >= fold._until
                    control.should_training_stop = control.should_training_stop or fold.ended
                elif state.global_step in fold._points and not fold._is_lost():
                    control.should_training_stop = fold._measure(state.global_step) or control.should_training_stop
                control.should_training_stop = control.should_training_stop or fold._folds._is_asked_to_stop()
                return control

            def on_log(self, _args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> Any:
                if "loss" in (logs or {}):
                    fold._logged(state.global_step, logs)
                control.should_training_stop = control.should_training_stop or fold.wrong is not None
                return control

        return Callback()

    def _is_lost(self) -> bool:
        """Whether a weight is no longer finite. The log of the step, which the health rules judge, comes only after the step's end."""
        import torch

        return not all(bool(torch.isfinite(weight).all()) for weight in self._trainer.model.parameters() if weight.requires_grad)

    def _measure(self, step: int) -> bool:
        """Measure the model, and return whether the fold ends."""
        began, slices = time.monotonic(), self._prompts.slices
        self._job.events.write(MEASURING, len(self._folds.done))
        scores, agreement = self._prompts.scores(self._trainer)
        one = Measurement(step, scores, False, agreement)
        self.measured.append(one)
        if self._until is not None:
            ends = step >= self._until
        else:
            self.late = step > 0 and 2 * (time.monotonic() - self._since) > self._seconds  # the next measurement is at twice as many steps
            ends = self.late or decide(self.measured, slices, self._recipe.last_step).action != "train"
        self.ended = ends
        self._job.events.write(
            "measured",
            len(self._folds.done),
            fold=self._number,
            fold_step=step,
            folds=len(self._folds.folds),
            score=_finite(mean(one)),
            by=self._prompts.by,
            prompts=len(scores),
            scores=list(scores),
            action="end" if ends else "train",
            reason=f"fold {self._number} of {len(self._folds.folds)}" + ("; no time is left for longer folds" if self.late else ""),
            seconds=round(time.monotonic() - began, 3),
        )
        return ends

    def _logged(self, step: int, logs: Mapping[str, Any]) -> None:
        numbers = figures(logs, self._watch.beta, time.monotonic() - self._began)
        self._job.events.write(FOLD, len(self._folds.done), fold=self._number, fold_step=step, **numbers)
        for verdict in self._watch.judge(step, numbers):
            if verdict.action != "note" and self.wrong is None:
                self.wrong = verdict
                reason = f"fold {self._number} ends at step {step}: {verdict.reason}"
                self._job.events.write("warning", len(self._folds.done), rule=verdict.rule, action="note", reason=reason)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rows(path: Path) -> Sequence[dict[str, Any]]:
    """The ids of the prompts of a file, with their clusters if it has them."""
    import pyarrow.parquet as pq

    names = [name for name in ("prompt_id", "cluster") if name in pq.read_schema(path).names]
    return [dict(row) for row in pq.read_table(path, columns=names).to_pylist()] if names else [{}]
