"""Trainer process on NeMo RL: prepares a run, observes it, seals its checkpoints, and writes the result.

The run is a child process (`launcher`), because Ray handles signals itself and can hang. The two processes communicate through files.
After SIGTERM, this process writes a stop file, and the run ends after its current step with a checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ratchet.contracts.errors import Permanent, RatchetError
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.runtime.jobs.full_disk import full_disk_text, is_full_disk
from ratchet.runtime.jobs.job_protocol import GRACE, LOCK_FD, IncarnationFile, RunFile, step_folder, trainer_log
from ratchet.trainers.health import HealthVerdict, Watch, out_of_memory, proposed
from ratchet.trainers.job import checkpoints
from ratchet.trainers.job.fast_exit import brief, loaded
from ratchet.trainers.job.job_folder import Job, JobResult, here
from ratchet.trainers.job.nemo import export, launcher, prepare, prepare_offline, release, steps
from ratchet.trainers.job.nemo.choice import Choice, due, slices_of
from ratchet.trainers.job.nemo.data import Row
from ratchet.trainers.job.nemo.figures import Reader, of_preferences
from ratchet.trainers.job.parallel import die_with_parent
from ratchet.trainers.job.trl.runner import Stop
from ratchet.trainers.recipes.completion import KINDS
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.recipe import R, Recipe
from ratchet.trainers.recipes.sft import SFTRecipe
from ratchet.trainers.save_interval import fixed_interval, grace_shortfall, time_between

POLL = 0.2
"""Seconds between two checks of the run."""
RESERVE = 5.0
"""Seconds of the grace period that are reserved for this process if the run must be killed."""


class Asked(Stop):
    """Handles SIGTERM and writes the stop file for the run immediately, within the signal handler."""

    def __init__(self) -> None:
        self.file: Path | None = None
        super().__init__()

    def _hear(self, *_: object) -> None:
        self.asked = True
        if self.file is not None:
            self.file.touch()


def with_interval(job: Job, recipe: R) -> R:
    """Return the recipe with a number as `save_every`: for `auto`, computed from the times that earlier incarnations measured."""
    if recipe.save_every != "auto":
        return recipe
    measured = job.measured
    costs = [figures["checkpoint_seconds"] for figures in measured if figures.get("checkpoint_seconds")]
    timed = [figures for figures in measured if "step_seconds" in figures]  # the time of a step includes its save
    steps = [max(0.0, figures["step_seconds"] - figures.get("checkpoint_seconds", 0.0)) for figures in timed]
    between = time_between(recipe.interruption_hours * 3600, job.worked, job.incarnation - 1)
    return recipe.model_copy(update={"save_every": fixed_interval(steps, costs, between, recipe.validated_every)})


class ReleaseRun:
    """Executes one incarnation, from the preparation of its data to its result."""

    def __init__(self, job: Job, stop: Asked) -> None:
        self.job = job
        self.stop = stop
        self.method = job.plan.method
        self.recipe: Recipe = with_interval(job, job.recipe(KINDS[self.method]))
        self.beta = float(getattr(self.recipe, "beta", 0.0))
        self.work = job.folder / IncarnationFile.WORK
        self.checkpoints = self.work / prepare.CHECKPOINTS
        self.resume = None if _holds_another_rate(job) else job.resume
        self.kept = self.resume.step if self.resume else 0
        self.kept_at: Path | None = None
        self.choice: Choice | None = None
        self.step = self.kept
        self.figures: dict[str, float] = {}
        self.watch = Watch(self.recipe.health, self.beta, job.adjustment.rules)
        self.wrong: HealthVerdict | None = None
        self.warned = False
        self.told_reference = False
        self.asked_at: float | None = None

    def result(self) -> JobResult:
        """Execute the run and return its result."""
        try:
            pinned = checkpoints.resume_folder(self.job.run.parent, self.resume) if self.resume else None
        except RatchetError as error:  # a failure of the attempt, not of the plan: a further attempt starts from the beginning
            return JobResult(Outcome.FAILED, f"cannot resume: {error}", 0, {})
        self.kept_at = pinned
        self.choice = Choice.read(pinned, self.recipe.last_step) if pinned is not None else None
        if self._complete:  # an earlier incarnation ended after its last checkpoint, before the export
            return self._export()
        found = release.find(self.method.value)
        config, self.recipe, validated = self._prepare(found)
        if not validated:
            self.choice = None
        elif self.choice is None:
            self.choice = Choice(slices_of(validated), self.recipe.last_step)
        loaded()
        steps.lay_down(pinned, self.kept, self.checkpoints)
        self._warn()
        self.stop.file = self.work / launcher.STOP
        if self.stop.asked:
            return JobResult(Outcome.PREEMPTED, "asked to stop before the first step", self.kept, {})
        code = self._follow(self._start(config, found), found)
        return self._derive(code)

    def _prepare(self, found: release.Release) -> tuple[Path, Recipe, list[Row]]:
        if isinstance(self.recipe, GRPORecipe):
            return prepare.prepare(self.job, self.recipe, found, self.work)
        assert isinstance(self.recipe, SFTRecipe | DPORecipe)
        return prepare_offline.prepare(self.job, self.recipe, found, self.work)

    @property
    def _complete(self) -> bool:
        """Whether the run needs no further step: it has all of them, or its scores no longer rise."""
        return self.kept >= self.recipe.last_step or (self.recipe.steps == "auto" and self.choice is not None and self.choice.over)

    def _warn(self) -> None:
        if self.resume is None and self.job.resume is not None:
            reason = "the optimiser state of another attempt would restore its learning rate; this attempt begins at the start model"
            self.job.events.write("warning", 0, reason=reason)

    def _warn_of_reference(self, found: release.Release) -> None:
        """Warn once if neither the launcher nor the release keeps the KL reference of a resumed run."""
        if self.resume is None or not self.beta or found.keeps_reference or self._hooked("Policy") or self.told_reference:
            return
        self.told_reference = True
        now = f"from now on the reference is step {self.resume.step}, not the start model"
        reason = f"this release creates its KL reference after loading; {now}"
        self.job.events.write("warning", self.kept, reason=reason)

    def _start(self, config: Path, found: release.Release) -> subprocess.Popen[bytes]:
        lock = LOCK_FD.find(os.environ)
        return subprocess.Popen(
            [sys.executable, "-m", "ratchet.trainers.job.nemo.launcher", found.method, str(config), str(self.work), str(found.entry)],
            stdin=subprocess.DEVNULL,
            cwd=found.root,
            pass_fds=[] if lock is None else [lock],
        )

    def _follow(self, run: subprocess.Popen[bytes], found: release.Release) -> int:
        """Observe the run until it has ended, and return its exit code."""
        reader = Reader(self.work / launcher.FIGURES, self.work / prepare.JOURNAL)
        while (code := run.poll()) is None:
            self._warn_of_reference(found)
            self._find_steps(reader)
            if self.wrong:
                run.kill()
            if self.stop.asked:
                self._ask(run)
            time.sleep(POLL)
        self._find_steps(reader)
        self._keep(None)
        return code

    def _ask(self, run: subprocess.Popen[bytes]) -> None:
        self.asked_at = self.asked_at or time.monotonic()
        grace = GRACE.get(os.environ)
        if not self._hooked("TimeoutChecker") or time.monotonic() - self.asked_at > grace - RESERVE:
            run.kill()

    def _hooked(self, name: str) -> bool:
        """Whether the launcher could install the subclass of this name. True until the launcher reports it."""
        hooks = self.work / launcher.HOOKS
        return not hooks.exists() or bool(json.loads(hooks.read_text() or "{}").get(name, True))

    def _find_steps(self, reader: Reader) -> None:
        """Process new figures first, then new checkpoints, because the release saves a step before it logs the figures of the step."""
        if self.wrong:
            return
        for step, told in reader.steps():
            figures = of_preferences(told, self.beta)
            self._measure(reader)
            self.step = step
            self.figures = {name: value for name, value in figures.items() if math.isfinite(value)}
            self.job.events.write("progress", step, **figures)
            self._check_grace(step, figures)
            for verdict in self.watch.judge(step, figures):
                self.job.events.write("warning", step, rule=verdict.rule, action=verdict.action, reason=verdict.reason)
                self.wrong = self.wrong or (verdict if verdict.action != "note" else None)
            if self.wrong:
                return
            if (step + 1) % self.recipe.fixed_save_every == 0 or step + 1 == self.recipe.last_step:
                self.job.events.write("saving", step)  # the release saves the next step before it logs its figures
        self._keep(self.step if self._hooked("Logger") else None)

    def _measure(self, reader: Reader) -> None:
        """Decide after each validation. A resumed run may validate its first model as step 0 again, which says nothing about the start."""
        for step, scores in reader.validations():
            if self.choice is None or not self._counts(step) or (step == 0 and self.resume is not None):
                continue
            told = self.choice.add(step, scores)
            if told is not None:
                self.job.events.write("measured", step, **told)
        if self._complete and self.stop.file is not None:
            self.stop.file.touch()

    def _counts(self, step: int) -> bool:
        """Whether the choice may use this step: the release saves it and, with an open end, the measured steps about double."""
        every, last = self.recipe.fixed_save_every, self.recipe.last_step
        return step == 0 or (step in due(last, every) if self.recipe.steps == "auto" else step % every == 0 or step == last)

    def _check_grace(self, step: int, figures: Mapping[str, float]) -> None:
        """Warn once if a step and a checkpoint together take longer than the grace period. The first step includes compilation."""
        if self.warned or "checkpoint_seconds" not in figures or "step_seconds" not in figures:
            return
        save = figures["checkpoint_seconds"]
        short = grace_shortfall(max(0.0, figures["step_seconds"] - save), save, GRACE.get(os.environ))  # a step's time includes its save
        if short:
            self.warned = True
            self.job.events.write("warning", step, reason=short)
            sys.stderr.write(f"{short}\n")

    def _keep(self, judged: int | None) -> None:
        """Seal new complete steps up to the step `judged` (None: all new steps), unless a health rule ended the run."""
        for found in self._found():
            if self.wrong or found.step <= self.kept or found.missing or (judged is not None and found.step > judged):
                continue
            folder = self.job.folder / step_folder(found.step)
            self.job.events.write("saving", found.step)
            try:
                manifest = steps.keep(found, folder, self.work, self.recipe.lora is not None, self._carry)
            except FileNotFoundError:  # the release has removed it in the meantime
                continue
            path = folder.relative_to(self.job.run.parent).as_posix()
            self.job.events.write("checkpoint", found.step, path=path, manifest=manifest)
            self.kept, self.kept_at = found.step, folder
            if self.choice is not None:
                self.choice.sealed(found.step, folder)
            checkpoints.prune(self.job.folder, self.recipe.keep_checkpoints, self.job.resume or self.resume, self.watch.calm)

    def _carry(self, written: Path, step: int) -> None:
        if self.choice is not None:
            self.choice.carry(written, step)

    def _found(self) -> list[steps.FoundStep]:
        adapter = self.recipe.lora is not None
        return steps.find_steps(self.checkpoints, adapter, consolidated=False)

    def _derive(self, code: int) -> JobResult:
        self._tell_broken()
        if self.wrong:
            return JobResult(Outcome.FAILED, self.wrong.reason, self.step, self.figures, self.wrong.proposal)
        if self._complete:
            return self._export()
        if self.stop.asked:
            lost = max(0, self.step - self.kept)
            reason = f"asked to stop; checkpointed at step {self.kept} of {self.recipe.last_step}" + (
                f", {lost} steps lost" if lost else ""
            )
            return JobResult(Outcome.PREEMPTED, reason, self.kept, self.figures)
        return self._failed(self._why(code))

    def _failed(self, why: str) -> JobResult:
        """The result of a failed run. After an out-of-memory error, all sealed steps are valid, and the proposal is to use less memory."""
        used = self.job.adjustment.rules
        proposal = proposed("memory", self.recipe.health.memory, used, self.recipe.last_step) if out_of_memory(why) else None
        outcome = Outcome.PERMANENT if self._is_permanent() else Outcome.FAILED
        return JobResult(outcome, why, self.kept, self.figures, proposal)

    def _is_permanent(self) -> bool:
        error = self.work / launcher.ERROR
        return error.exists() and bool(json.loads(error.read_text()).get("permanent"))

    def _tell_broken(self) -> None:
        """Report incomplete steps and saves of the run as warnings."""
        for found in self._found():
            if found.missing:
                self.job.events.write("warning", found.step, reason=f"step {found.step} is incomplete: {', '.join(found.missing)}")
        if left := steps.leftovers(self.checkpoints):
            self.job.events.write("warning", self.kept, reason=f"incomplete saves, which are not resumed from: {', '.join(left)}")

    def _why(self, code: int) -> str:
        error = self.work / launcher.ERROR
        if error.exists():
            report = json.loads(error.read_text())
            memory = "out of memory: " if "out of memory" in report["message"].lower() else ""
            return f"{memory}{report['type']}: {report['message'][-600:]}"
        if code < 0:
            return f"the run was killed by signal {-code} (out of memory?) at step {self.step}"
        if code:
            return f"the run ended with exit code {code} at step {self.step}; see {self.job.folder / trainer_log(0)}"
        return f"the run ended early at step {self.step} of {self.recipe.last_step}, checkpointed at step {self.kept}: " + (
            "its timeout was near, or its epochs had too few prompts with mixed rewards; "
            "raise training.timeout, or set nemo.dynamic_sampling = false"
            if isinstance(self.recipe, GRPORecipe)
            else "its timeout was near; raise training.timeout"
        )

    def _export(self) -> JobResult:
        last = self.kept_at or self.job.folder
        adapter = self.recipe.lora is not None
        step, folder = self.choice.published(self.kept, last) if self.choice else (self.kept, last)
        missing = [*steps.lacks(last, self.kept, adapter, consolidated=False), *steps.lacks_model(folder, adapter)]
        if missing:
            return JobResult(Outcome.FAILED, f"step {step} cannot be published, it lacks: {', '.join(missing)}", self.kept, self.figures)
        self.job.events.write("exporting", self.kept)
        export.export(self.job.run / RunFile.MODEL, folder, adapter, self.work, self.job.folder / IncarnationFile.MODEL)
        figures = self.figures | (self.choice.figures(step) if self.choice else {})
        reason = f"{self.kept} steps" if step == self.kept else f"{self.kept} steps, of which step {step} is published"
        return JobResult(Outcome.DONE, reason, self.kept, figures)


def _holds_another_rate(job: Job) -> bool:
    """Whether the pinned step is from another attempt that may have had another learning rate.

    The release would restore that rate with the optimiser state, and no configuration key overrides it. So such a step is not resumed
    from.
    """
    return job.resume is not None and job.resume.attempt != job.attempt and job.adjustment.learning_rate != 1.0


def main() -> None:
    """Run the trainer process. It writes a result file in all cases except a kill."""
    die_with_parent()
    stop = Asked()
    job = here()
    try:
        job.finish(ReleaseRun(job, stop).result())
    except ImportError as error:
        job.finish(
            JobResult(Outcome.PERMANENT, f"{error}: this environment cannot train; use a NeMo RL image with ratchet installed", 0, {})
        )
    except Permanent as error:
        job.finish(JobResult(Outcome.PERMANENT, str(error), 0, {}))
    except (Exception, MemoryError) as error:
        reason = full_disk_text(job.folder) if is_full_disk(error) else f"{type(error).__name__}: {str(error)[:400]}"
        job.finish(JobResult(Outcome.FAILED, reason, 0, {}))
        raise


if __name__ == "__main__":
    with brief():
        main()
