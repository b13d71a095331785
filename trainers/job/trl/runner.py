"""Shared parts of the DPO, SFT and GRPO trainer processes: arguments, health rules, checkpoints and the saved model.

After SIGTERM, the current step is finished and checkpointed, and the run ends as preempted. The just-in-time checkpoint of the
library is not used: it saves within a step, when GRPO has already drawn random numbers. At the end of a step, a resume is exact.
"""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.contracts.errors import Permanent, RatchetError
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import ResumePoint
from ratchet.runtime.jobs.full_disk import full_disk_text, is_full_disk
from ratchet.runtime.jobs.job_protocol import GRACE, IncarnationFile, RunFile, step_folder
from ratchet.trainers.health import REMEDIES, HealthVerdict, Watch, out_of_memory, proposed
from ratchet.trainers.job import checkpoints, parallel
from ratchet.trainers.job.fast_exit import brief, loaded
from ratchet.trainers.job.job_folder import Job, JobResult, here
from ratchet.trainers.job.trl.figures import STATE, figures, gpu_figures
from ratchet.trainers.recipes.derived import adjusted
from ratchet.trainers.recipes.recipe import Recipe
from ratchet.trainers.save_interval import Cadence, grace_shortfall, time_between

if TYPE_CHECKING:
    from ratchet.trainers.job.trl.folds import Folds
    from ratchet.trainers.job.trl.length_control import LengthControl


class Stop:
    """Records whether SIGTERM was received. The handler is installed before the library is loaded."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, *_: object) -> None:
        self.asked = True


Build = Callable[[Job, dict[str, Any]], Any]
"""(job, shared arguments) -> a trainer of the library, ready to train."""


def main(build: Build, kind: type[Recipe]) -> None:
    """Entry point of a trainer process: run `train` and exit."""
    os.environ.setdefault("DISABLE_MLFLOW_INTEGRATION", "TRUE")  # GRPO in TRL loads an installed MLflow; no run reports to it
    with brief():
        train_job(build, kind)


def train_job(build: Build, kind: type[Recipe]) -> None:
    """Train the job that the environment defines, and write its result file in all cases except a kill.

    Unexpected exceptions are raised again after the result file is written.
    """
    parallel.die_with_parent()
    stop = Stop()
    job = here()
    try:
        _finish(job, _run(job, job.recipe(kind), build, stop))
    except ImportError as error:
        _finish(job, JobResult(Outcome.PERMANENT, f"{error}: this environment cannot train; install ratchet[train]", 0, {}))
    except Permanent as error:
        _finish(job, JobResult(Outcome.PERMANENT, str(error), 0, {}))
    except (Exception, MemoryError) as error:
        _finish(job, _failure(job, full_disk_text(job.folder) if is_full_disk(error) else _error_text(error), kind))
        raise


def _error_text(error: BaseException) -> str:
    """Describe an error for the result file.

    For Ratchet's own errors and out-of-memory errors, this is the message. For other errors it is the type and the place, because
    their message may quote users. The message is in the log.
    """
    message = f"{type(error).__name__}: {str(error)[:400]}"
    if isinstance(error, RatchetError) or out_of_memory(message):
        return message
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = "/".join(Path(place.filename).parts[-2:])
    return f"unexpected {type(error).__name__} at {where}:{place.lineno}; see the trainer's log for the message"


def _failure(job: Job, reason: str, kind: type[Recipe]) -> JobResult:
    """The result after an error. After an out-of-memory error, all saved steps are valid, and the proposal is to use less memory."""
    short, recipe = out_of_memory(reason), job.recipe(kind)
    helps = adjusted(recipe, REMEDIES["memory"]) != recipe  # otherwise the next attempt would fail in the same way
    proposal = proposed("memory", recipe.health.memory, job.adjustment.rules, job.events.total) if short and helps else None
    return JobResult(Outcome.FAILED, f"out of memory: {reason}" if short else reason, 0, {}, proposal)


def _finish(job: Job, result: JobResult) -> None:
    """Write the result file. Rank 0 reports success. The first rank to fail reports the failure: others can fail as a consequence."""
    if parallel.alone():
        return job.finish(result)
    good = result.outcome in (Outcome.DONE, Outcome.PREEMPTED)
    if parallel.rank() == 0 if good else job.result() is None:
        job.finish(result)
    return None


def _run(job: Job, recipe: Recipe, build: Build, stop: Stop) -> JobResult:
    resume = job.resume
    try:
        folder = checkpoints.resume_folder(job.run.parent, resume) if resume else None
    except RatchetError as error:  # a failure of the attempt, not of the plan: a further attempt starts from the beginning
        return JobResult(Outcome.FAILED, f"cannot resume: {error}", 0, {})
    _number_type(job.run / RunFile.MODEL)  # rejects weights that could not be published before the first step
    if recipe.lora is None or recipe.lora.quantize == "none":
        sys.modules.setdefault("bitsandbytes", None)  # type: ignore[arg-type]  # PEFT would import it, and with it torch's compiler: 2 s
    folds = _folds(job, recipe, build, stop, folder)
    if folds is not None:
        if (end := folds.run()) is not None:
            return end
        folder = folder if folder is not None and (folder / STATE).exists() else None  # the folds have no weights to resume from
        if folds.sifted is not None:
            job = replace(job, row_weights=folds.sifted.weights)
    trainer = _built(build, job, recipe, arguments(job, recipe))
    watcher = _Watcher(job, recipe, stop, resume)
    if recipe.steps == "auto":
        from ratchet.trainers.job.trl.length_control import LengthControl

        watcher.length = LengthControl(job, recipe, trainer, folder, folds.chosen if folds else None)
        watcher.folds = folds if folds and folds.folds else None
    trainer.add_callback(watcher.callback(trainer))
    loaded()
    if parallel.agreed(trainer, stop.asked):
        return JobResult(Outcome.PREEMPTED, "asked to stop before the first step", resume.step if resume else 0, {})
    trainer.train(resume_from_checkpoint=str(folder) if folder else None)
    step = int(trainer.state.global_step)
    if watcher.wrong:
        return JobResult(Outcome.FAILED, watcher.wrong.reason, step, watcher.figures, watcher.wrong.proposal)
    done = watcher.length.length if watcher.length and watcher.length.finished else None
    if step < recipe.last_step and not done:
        return JobResult(Outcome.PREEMPTED, f"asked to stop; checkpointed at step {step} of {recipe.last_step}", step, watcher.figures)
    if parallel.rank() == 0:
        job.events.write("exporting", step)
    if watcher.length:
        watcher.length.restore(step)
        watcher.figures |= watcher.length.figures()
    if folds is not None and folds.sifted is not None and folds.sifted.weights:
        watcher.figures |= {"teacher_answers": float(folds.sifted.answers), "teacher_answers_left_out": float(folds.sifted.left_out)}
    save(trainer, job)
    return JobResult(Outcome.DONE, f"{step} steps" + (f"; {done.reason}" if done else ""), step, watcher.figures)


def _folds(job: Job, recipe: Recipe, build: Build, stop: Stop, resumed: Path | None) -> Folds | None:
    """Return the cross-validation of the run; None without one."""
    if recipe.steps != "auto" or not (job.run / RunFile.CROSS_VALIDATION).exists() or not parallel.alone():
        return None
    from ratchet.trainers.job.trl.folds import Folds

    def trainer(part: Job) -> Any:
        return _built(build, part, recipe, {**arguments(part, recipe), "save_strategy": "no"})

    return Folds(job, recipe, trainer, lambda: stop.asked, resumed)


def _built(build: Build, job: Job, recipe: Recipe, shared: dict[str, Any]) -> Any:
    trainer = build(job, shared)
    if recipe.lora and recipe.lora.quantize != "none":
        keep_exact(trainer.model)
    return trainer


def arguments(job: Job, recipe: Recipe) -> dict[str, Any]:
    """Return the library arguments that all methods share, from the recipe. Also sets the number of torch threads."""
    import torch

    torch.set_num_threads(recipe.cpus)
    on_gpu = job.gpus > 0
    bf16 = recipe.precision == "bf16" or (recipe.precision == "auto" and on_gpu)
    return {
        "output_dir": str(job.folder / IncarnationFile.WORK),
        "seed": job.plan.seed,
        "max_steps": recipe.last_step,
        "per_device_train_batch_size": recipe.micro_batch,
        "learning_rate": recipe.rate,
        "lr_scheduler_type": "constant_with_warmup" if recipe.steps == "auto" else recipe.schedule,
        "warmup_steps": recipe.warmup_steps,
        "weight_decay": recipe.weight_decay,
        "max_grad_norm": recipe.max_grad_norm,
        "optim": "adamw_torch",
        "model_init_kwargs": {"dtype": "float32", "trust_remote_code": False} | quantization(recipe, bf16),
        "bf16": bf16,
        "gradient_checkpointing": recipe.gradient_checkpointing,
        "use_cpu": not on_gpu,
        "save_strategy": "no" if recipe.save_every == "auto" else "steps",  # auto: the watcher triggers the saves
        "save_steps": 1 if recipe.save_every == "auto" else recipe.save_every,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # otherwise the health rules would never see a NaN
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": on_gpu,
        "ddp_find_unused_parameters": False,
        "ddp_timeout": int(recipe.health.save_seconds),  # the other ranks wait for rank 0 while it writes a checkpoint
        "disable_tqdm": True,
        "report_to": "none",
    } | parallel.sharding(job.run / RunFile.MODEL, job.gpus)


def lora(recipe: Recipe) -> Any:
    """Return the adapter configuration of the library (`LoraConfig`), or None without an adapter."""
    if recipe.lora is None:
        return None
    from peft import LoraConfig

    targets = recipe.lora.targets if isinstance(recipe.lora.targets, str) else list(recipe.lora.targets)
    return LoraConfig(
        r=recipe.lora.rank, lora_alpha=recipe.lora.alpha, lora_dropout=recipe.lora.dropout, target_modules=targets, task_type="CAUSAL_LM"
    )


def keep_exact(model: Any) -> None:
    """Convert the trained weights of a quantized model to float32, the dtype in which they are saved.

    The library rounds them to bfloat16 at the start of a run but not at a resume. So an interruption would change the result.
    """
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()


def quantization(recipe: Recipe, bf16: bool) -> dict[str, Any]:
    """Return the library arguments to load a quantized start model (QLoRA), or no arguments without quantization.

    `bf16` selects bfloat16 as the compute dtype instead of float32. Raises Permanent if bitsandbytes is not installed.
    """
    if recipe.lora is None or recipe.lora.quantize == "none":
        return {}
    if importlib.util.find_spec("bitsandbytes") is None:
        raise Permanent(
            "lora.quantize = nf4 needs bitsandbytes, which is not installed here; install ratchet[qlora], or set quantize to none"
        )
    four_bits = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    return {"quantization_config": {**four_bits, "bnb_4bit_compute_dtype": "bfloat16" if bf16 else "float32"}}


def _cadence(job: Job, recipe: Recipe) -> Cadence | None:
    """The checkpoint interval for `save_every = auto`, otherwise None. Each earlier incarnation counts as one interruption."""
    if recipe.save_every != "auto":
        return None
    return Cadence(time_between(recipe.interruption_hours * 3600, job.worked, job.incarnation - 1))


def take_rate(scheduler: Any, optimizer: Any, rate: float) -> None:
    """Set the learning rate of a resumed optimiser to `rate`, because its state holds the rate of the earlier attempt.

    If the rate is the same, nothing is changed, so that an ordinary resume stays exact.
    """
    schedule = getattr(scheduler, "scheduler", scheduler)
    if all(known == rate for known in schedule.base_lrs):
        return
    schedule.base_lrs = [rate for _ in schedule.base_lrs]
    for group, share in zip(optimizer.param_groups, schedule.lr_lambdas, strict=True):
        group["initial_lr"] = rate
        group["lr"] = rate * share(schedule.last_epoch)
    schedule._last_lr = [group["lr"] for group in optimizer.param_groups]


class _Watcher:
    """Observes every step: writes events, seals checkpoints, and stops the run after a health verdict or a stop request."""

    def __init__(self, job: Job, recipe: Recipe, stop: Stop, pinned: ResumePoint | None) -> None:
        self.job = job
        self.recipe = recipe
        self.stop = stop
        self.pinned = pinned
        self.watch = Watch(recipe.health, float(getattr(recipe, "beta", 0.0)), job.adjustment.rules)
        self.wrong: HealthVerdict | None = None
        self.began = self.ended = time.monotonic()
        self.cadence = _cadence(job, recipe)
        self.warned = False
        self.figures: dict[str, float] = {}
        self.length: LengthControl | None = None
        """Controls the number of steps if the recipe does not name it."""
        self.folds: Folds | None = None
        """The cross-validation whose measurements the checkpoints contain."""

    def logged(self, step: int, logs: Mapping[str, Any]) -> None:
        if "loss" not in logs:  # the summary at the end of a run
            return
        numbers = figures(logs, self.watch.beta, time.monotonic() - self.began)
        if self.length:
            numbers |= self.length.scores_of(step)
        self.figures = {name: value for name, value in numbers.items() if math.isfinite(value) and name != "step_seconds"}
        if parallel.rank() == 0:
            self.job.events.write("progress", step, **numbers, **gpu_figures())
        alike = {name: value for name, value in numbers.items() if name != "step_seconds" or parallel.alone()}
        for verdict in self.watch.judge(step, alike):  # every rank has the same figures and the same verdicts
            if parallel.rank() == 0:
                self.job.events.write("warning", step, rule=verdict.rule, action=verdict.action, reason=verdict.reason)
            if verdict.action != "note" and self.wrong is None:
                self.wrong = verdict

    def saved(self, step: int) -> None:
        folder = self.job.folder / step_folder(step)
        written = self.job.folder / IncarnationFile.WORK / f"checkpoint-{step}"
        (written / "training_args.bin").unlink(missing_ok=True)  # an unnecessary pickle: the recipe has all settings
        if self.length:
            self.length.carry(written, step)
        if self.folds:
            self.folds.carry(written)
        manifest = checkpoints.seal(written, folder)
        path = folder.relative_to(self.job.run.parent).as_posix()
        self.job.events.write("checkpoint", step, path=path, manifest=manifest)
        checkpoints.prune(self.job.folder, self.recipe.keep_checkpoints, self.job.resume or self.pinned, self.watch.calm)

    def timed(self, step: int) -> None:
        """Warn once if a step and a checkpoint together take longer than the grace period. Called after a save."""
        now = time.monotonic()
        short = grace_shortfall(self.ended - self.began, now - self.ended, GRACE.get(os.environ))
        if short and not self.warned and parallel.rank() == 0:
            self.warned = True
            self.job.events.write("warning", step, reason=short)
            sys.stderr.write(f"{short}\n")

    def callback(self, trainer: Any) -> Any:
        """Return the callback for the library. The ranks synchronise after each step, and before and after a checkpoint is sealed."""
        from transformers import TrainerCallback

        watcher = self

        class Callback(TrainerCallback):
            def on_train_begin(self, _args: Any, state: Any, control: Any, **library: Any) -> Any:
                if watcher.length:
                    watcher.length.begin(state)
                if watcher.pinned is not None:
                    take_rate(library["lr_scheduler"], library["optimizer"], watcher.recipe.rate)
                return control

            def on_step_begin(self, _args: Any, _state: Any, control: Any, **_: Any) -> Any:
                watcher.began = time.monotonic()
                return control

            def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> Any:
                watcher.ended = time.monotonic()
                if watcher.length and watcher.length.after(state):
                    control.should_save = True
                    control.should_training_stop = control.should_training_stop or watcher.length.finished
                # Save the last step, so that no steps are lost if the process dies during the export.
                if watcher.cadence is not None and state.global_step >= state.max_steps:
                    control.should_save = True
                if watcher.cadence is not None and parallel.agreed(trainer, watcher.cadence.due(watcher.ended - watcher.began)):
                    control.should_save = True
                if parallel.agreed(trainer, watcher.stop.asked):
                    control.should_save = control.should_training_stop = True
                if watcher.folds and state.global_step <= watcher.folds.last_step:  # these steps name the checkpoints of the folds
                    control.should_save = False
                return control

            def on_log(self, _args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> Any:
                watcher.logged(state.global_step, logs or {})
                if watcher.wrong:  # the library logs before it saves, so a failed step is not saved
                    control.should_save, control.should_training_stop = False, True
                if control.should_save and "loss" in (logs or {}) and parallel.rank() == 0:
                    watcher.job.events.write("saving", state.global_step)
                return control

            def on_save(self, _args: Any, state: Any, control: Any, **_: Any) -> Any:
                trainer.accelerator.wait_for_everyone()  # each rank writes its own random number state
                parallel.bring_together(watcher.job.folder / IncarnationFile.WORK / f"checkpoint-{state.global_step}")
                if parallel.rank() == 0:
                    watcher.saved(state.global_step)
                trainer.accelerator.wait_for_everyone()
                if watcher.length:
                    watcher.length.sealed(watcher.job.folder / step_folder(state.global_step))
                watcher.timed(state.global_step)
                if watcher.cadence is not None:
                    watcher.cadence.saved(time.monotonic() - watcher.ended)
                return control

        return Callback()


def _number_type(start: Path) -> str:
    """The torch dtype name of the start model, which the published model keeps. Raises Permanent for unsupported dtypes."""
    types = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
    stored = checkpoints.stored_dtype(start)
    if stored not in types:
        raise Permanent(f"the start model's weights are {stored}; train from float32, bfloat16 or float16 weights")
    return types[stored]


def save(trainer: Any, job: Job) -> None:
    """Write the publishable model: the trained weights in the dtype of the start model, with the start model's other files.

    An adapter is merged first, and is published by itself, too. All ranks must call this function, because shards are gathered; rank 0
    writes.
    """
    import torch

    start = job.run / RunFile.MODEL
    stored = getattr(torch, _number_type(start))
    whole = trainer.accelerator.get_state_dict(trainer.model) if trainer.is_fsdp_enabled else None
    if parallel.rank() == 0:
        raw = job.folder / IncarnationFile.WORK / "trained"
        model = trainer.accelerator.unwrap_model(trainer.model)
        if hasattr(model, "merge_and_unload"):
            adapter = job.folder / IncarnationFile.WORK / "adapter"
            model.save_pretrained(adapter, state_dict=whole)
            checkpoints.publishable_adapter(adapter, job.folder / IncarnationFile.ADAPTER, job.plan.start.files)
            model, whole = merged(start, adapter), None
        if whole is None:
            model.to(stored).save_pretrained(raw)
        else:
            model.save_pretrained(raw, state_dict={name: value.to(stored) for name, value in whole.items()})
        checkpoints.publishable(start, raw, job.folder / IncarnationFile.MODEL)
    trainer.accelerator.wait_for_everyone()


def merged(start: Path, adapter: Path) -> Any:
    """Return the start model with the adapter merged into its weights.

    The original weights are loaded as float32, also if the adapter was trained on a quantized model.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(start, dtype="float32", trust_remote_code=False)
    return PeftModel.from_pretrained(base, adapter).merge_and_unload()
