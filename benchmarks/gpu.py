"""A benchmark of a GPU machine in twenty minutes: DPO against the plain script, SFT, GRPO without and with vLLM, FSDP2 on all GPUs,
one step of NeMo RL, peak memory, resume, and running out of memory.

The model has about 1B parameters with random weights (the shape of Llama 3.2 1B) and trains in bf16 with float32 weights. The script writes
the JSON report and its page (`gpu_page.py`) after each section, so that no result is lost if a later section fails.

The section `vllm` needs vllm in the environment, `fsdp2` at least two GPUs, and `nemo_rl` the image of a NeMo RL release, in which TRL is
absent: run `--only nemo_rl` there. A section that cannot run says why, in the report and on standard error.

It needs 60 GB of disk in the folder for temporary files. `--toy` runs the same sections on a CPU in seconds, which only tests the script.

`python benchmarks/gpu.py --out report.json` also writes `report.html`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from dpo_speed import Kept, Size, ours, plain, some_pairs, timed, write_model
from gpu_grpo import grpo, vllm
from gpu_page import page
from gpu_setting import Setting, fresh, now, peak

from ratchet.contracts.errors import Permanent
from ratchet.runtime.jobs.job_protocol import NEMO_RL
from ratchet.trainers.code_digest import code_digest
from ratchet.trainers.health import out_of_memory as is_short
from ratchet.trainers.health import proposed
from ratchet.trainers.job.nemo import release
from ratchet.trainers.job.parallel import LOOPBACK
from ratchet.trainers.job.trl.micro_batches import PairSize
from ratchet.trainers.recipes.derived import adjusted


def dpo(setting: Setting) -> dict[str, Any]:
    """Measure throughput and peak memory of the plain script and of Ratchet's trainer, and the largest difference of their losses."""
    from ratchet.trainers.job.trl.dpo_trainer import Optimizations

    batch, steps = setting.size.batch, setting.size.steps
    fresh()
    usual = timed(plain(setting.model, setting.pairs, setting.arguments(steps, "plain"), batch), setting.pairs, batch, None, now)
    usual["peak_gib"] = peak()
    results = {"plain script": usual}
    for name, optimizations in (("ours, separate prompts", Optimizations(shared_prompt=False)), ("ours", Optimizations())):
        fresh()
        kept = Kept(now)
        trainer = ours(setting.model, setting.pairs, setting.arguments(steps, "ours"), batch, optimizations, kept)
        results[name] = timed(trainer, setting.pairs, batch, kept, now) | {"peak_gib": peak(), "shares_prompts": trainer.shares}
        del trainer
    for result in results.values():
        result["over_plain_cold"] = round(result["tokens_per_s_cold"] / usual["tokens_per_s_cold"], 2)
        result["loss_differs_at_most"] = max(abs(a - b) for a, b in zip(result["losses"], usual["losses"], strict=True))
    return results


def resume(setting: Setting) -> dict[str, Any]:
    """Compare a run of four steps with the same run resumed after its second step, and with the same run once more.

    Reports the largest difference of a weight for each. The kernels of a GPU may add in another order each time, so that not even two
    undisturbed runs are equal; a resume is exact if it differs no more than they do.
    """
    from ratchet.trainers.job.trl.dpo_trainer import Optimizations

    def run(name: str, save: str = "no", **given: Any) -> tuple[Any, list[float]]:
        fresh()
        arguments = setting.arguments(4, name, save_strategy=save, save_steps=2, save_total_limit=2)
        trainer = ours(setting.model, setting.pairs[: 4 * 8], arguments, 8, Optimizations(), Kept(now))
        trainer.train(**given)
        return {n: w.detach().cpu() for n, w in trainer.model.named_parameters()}, [
            e["loss"] for e in trainer.state.log_history if "loss" in e
        ]

    whole, losses = run("whole", save="steps")
    continued, after = run("continued", resume_from_checkpoint=str(setting.work / "whole" / "checkpoint-2"))
    repeated, again = run("repeated")
    return {
        "largest_difference": max(float((whole[name] - continued[name]).abs().max()) for name in whole),
        "of_two_undisturbed_runs": max(float((whole[name] - repeated[name]).abs().max()) for name in whole),
        "losses": losses,
        "losses_after_resume": after,
        "losses_of_a_second_run": again,
    }


def out_of_memory(setting: Setting) -> dict[str, Any]:
    """Provoke an out-of-memory error and apply the change that the health watch proposes.

    A step with almost no free memory must fail with an error that the watch recognizes. The same process then trains the step with half as
    many tokens in memory. On a CPU the error is simulated.
    """
    import torch

    from ratchet.trainers.job.trl.dpo_trainer import Optimizations

    fresh()
    trainer = ours(setting.model, setting.pairs[:16], setting.arguments(1, "oom"), 16, Optimizations(), Kept(now))
    recipe = trainer.recipe
    try:
        with scarce(setting.gpu, trainer):
            trainer.training_step(trainer.model, {"rows": list(range(16))})
        said = "it did not run out"
    except torch.OutOfMemoryError as error:
        said = f"{type(error).__name__}: {str(error)[:80]}"
    proposal = proposed("memory", recipe.health.memory, (), good=0) if is_short(said) else None
    trainer.recipe = adjusted(recipe, proposal.adjustment) if proposal else recipe
    trainer.model.zero_grad()
    fresh()
    loss = float(trainer.training_step(trainer.model, {"rows": list(range(16))}))
    return {"failed_with": said, "tokens_in_memory": [recipe.budget, trainer.recipe.budget], "loss_afterwards": loss, "peak_gib": peak()}


@contextmanager
def scarce(gpu: bool, trainer: Any) -> Iterator[None]:
    """Leave only 1 GiB of the GPU's memory free; on a CPU, make the model's calls raise OutOfMemoryError."""
    import torch

    if gpu:
        free, _ = torch.cuda.mem_get_info()
        ballast = torch.empty(max(0, free - (1 << 30)), dtype=torch.uint8, device="cuda")
        try:
            yield
        finally:
            del ballast
        return

    def refuse(*_: Any) -> None:
        raise torch.OutOfMemoryError("simulated: out of memory")

    hook = trainer.model.register_forward_pre_hook(refuse)
    try:
        yield
    finally:
        hook.remove()


def sft(setting: Setting) -> dict[str, Any]:
    """Measure the tokens per second and the peak memory of the library's SFT trainer, which a job uses with another sampler only."""
    fresh()
    trainer, marks = sft_trainer(setting, "sft", {})
    trainer.train()
    return {"tokens_per_s": tokens_per_second(setting, marks), "losses": losses(trainer), "peak_gib": peak()}


def sft_trainer(setting: Setting, name: str, more: dict[str, Any]) -> tuple[Any, list[float]]:
    """Return the library's SFT trainer over the chosen answers of the pairs, and the list of times at which its steps end."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    from ratchet.trainers.job.parallel import world

    marks: list[float] = []

    class Marks(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            marks.append(now())

    batch, steps = setting.size.batch, setting.size.steps
    rows = [
        {"input_ids": [*pair.prompt, *pair.chosen], "completion_mask": [0] * len(pair.prompt) + [1] * len(pair.chosen)}
        for pair in setting.pairs[: batch * steps]
    ]
    held = 4 // min(4, world())
    config = SFTConfig(
        **setting.arguments(steps, name, per_device_train_batch_size=held, **more),
        gradient_accumulation_steps=batch // (held * world()),
        max_length=None,
        shuffle_dataset=False,
    )
    tokenizer = AutoTokenizer.from_pretrained(setting.model)
    trainer = SFTTrainer(
        model=str(setting.model), args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, callbacks=[Marks()]
    )
    return trainer, marks


def tokens_per_second(setting: Setting, marks: list[float]) -> float:
    """Return the average over all steps but the first. `marks` are the times at which the steps ended."""
    batch = setting.size.batch
    tokens = sum(len(pair.prompt) + len(pair.chosen) for pair in setting.pairs[batch : batch * setting.size.steps])
    return round(tokens / (marks[-1] - marks[0]), 1)


def losses(trainer: Any) -> list[float]:
    """Return the loss of each step."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def fsdp2(setting: Setting) -> dict[str, Any]:
    """Train the SFT section on all GPUs of the machine with FSDP2, as a job does, and compare its losses with one process.

    On a CPU, two processes train without sharding, because the library shards on GPUs only.
    """
    import torch

    processes = torch.cuda.device_count() if setting.gpu else 2
    if processes < 2:
        return {"skipped": "one GPU; FSDP2 needs at least two"}
    out = setting.work / "ranks"
    given = {"size": setting.size, "gpu": setting.gpu, "model": str(setting.model), "work": str(setting.work), "pairs": setting.pairs}
    (setting.work / "setting.json").write_text(json.dumps(given))
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{LOOPBACK}:0", "--local-addr", LOOPBACK, "--max-restarts", "0"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), *meeting, __file__]
    done = subprocess.run([*command, "--rank-of", str(setting.work / "setting.json"), "--out", str(out)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-1000:])
    result = json.loads(out.read_text())
    fresh()
    trainer, _ = sft_trainer(setting, "one process", {})
    trainer.train()
    differences = [abs(a - b) for a, b in zip(result["losses"], losses(trainer), strict=True)]
    return {"processes": processes, **result, "loss_differs_at_most": max(differences)}


def train_rank(setting: Setting, out: Path) -> None:
    """Train one rank of the section `fsdp2`; rank 0 writes the result to `out`."""
    from accelerate.utils import gather_object

    from ratchet.trainers.job.parallel import rank, sharding, world

    fresh()
    trainer, marks = sft_trainer(setting, "sharded", sharding(setting.model, world() if setting.gpu else 0))
    trainer.train()
    peaks = gather_object([peak()])
    if rank() == 0:
        sharded = any(type(value).__name__ == "DTensor" for value in trainer.model.parameters())
        result = {"sharded": sharded, "tokens_per_s": tokens_per_second(setting, marks), "losses": losses(trainer), "peak_gib": peaks}
        out.write_text(json.dumps(result))


def jobs(setting: Setting) -> dict[str, Any]:
    """Run jobs of the product by method on one GPU, and compare their peak memory with the arithmetic of `ratchet plan`."""
    from gpu_jobs import run_cases

    fresh()  # the jobs are processes of their own and need the memory
    work = setting.work / "by method"
    work.mkdir()
    engine = setting.gpu and importlib.util.find_spec("vllm") is not None
    return {"cases": run_cases(setting.model, work, 1 if setting.gpu else 0, small=not setting.gpu, vllm=engine)}


def nemo_rl(setting: Setting) -> dict[str, Any]:
    """Measure one GRPO step of NeMo RL on all GPUs, as a job on a cluster runs it. `--toy` runs it only if RATCHET_NEMO_RL is set."""
    import torch

    if not setting.gpu and NEMO_RL.name not in os.environ:
        return {"skipped": "not measured: NeMo RL needs a GPU"}
    try:
        release.find()
    except Permanent as error:
        return {"skipped": f"not measured: {error}"}
    if setting.gpu and any(importlib.util.find_spec(name) is None for name in ("ray", "nemo_rl")):
        return {"skipped": "not measured: ray or nemo_rl is not installed in this environment; use the Python of a NeMo RL image"}
    from nemo_step import one_step

    fresh()  # the engines of the release need the memory
    return one_step(setting.model, setting.work / "nemo", torch.cuda.device_count() if setting.gpu else 1, small=not setting.gpu)


SECTIONS: dict[str, Callable[[Setting], dict[str, Any]]] = {
    "dpo": dpo, "resume": resume, "out_of_memory": out_of_memory, "sft": sft, "grpo": grpo, "vllm": vllm, "fsdp2": fsdp2,
    "jobs": jobs, "nemo_rl": nemo_rl,
}  # fmt: skip


def run(setting: Setting, out: Path, minutes: float, only: Sequence[str] = ()) -> dict[str, Any]:
    """Run all sections (or only those named) that start within `minutes`, and write the report after each; returns the report."""
    import torch

    began = time.monotonic()
    device = torch.cuda.get_device_name() if setting.gpu else "cpu"
    report: dict[str, Any] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "code": code_digest()[:12], "device": device}
    report |= {"toy": not setting.gpu, "size": setting.size._asdict(), "sections": {}}
    known = _known(out, report) if only else {"sections": {}}
    report["seconds_of"] = dict(known.get("seconds_of", {}))
    for name, section in SECTIONS.items():
        started = time.monotonic()
        if only and name not in only:
            report["sections"][name] = known["sections"].get(name, {"skipped": "not measured: left out by --only"})
        elif time.monotonic() - began > 60 * minutes:
            report["sections"][name] = {"skipped": f"the limit of {minutes:g} minutes was reached"}
        else:
            try:
                report["sections"][name] = section(setting)
            except Exception as error:  # one failed section must not lose the results of the others
                report["sections"][name] = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-2000:]}
        for left in setting.work.iterdir():
            if left != setting.model:
                shutil.rmtree(left) if left.is_dir() else left.unlink()  # checkpoints have 15 GB
        if not only or name in only:
            report["seconds_of"][name] = round(time.monotonic() - started, 1)
        if "skipped" in report["sections"][name]:
            click.echo(f"{name}: {report['sections'][name]['skipped']}", err=True)
        report["seconds"] = round(sum(report["seconds_of"].values()), 1)
        out.write_text(json.dumps(report, indent=1) + "\n")
        out.with_suffix(".html").write_text(page(report), encoding="utf-8")
    return report


def _known(out: Path, report: dict[str, Any]) -> dict[str, Any]:
    """Return the report in `out` if it is of the same code, device and size as `report`, otherwise one without sections."""
    earlier: dict[str, Any] = json.loads(out.read_bytes()) if out.exists() else {}
    return earlier if all(earlier.get(key) == report[key] for key in ("code", "device", "toy", "size")) else {"sections": {}}


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="File for the JSON report.")
@click.option("--minutes", default=15.0, help="Start no section after this many minutes.")
@click.option("--toy", is_flag=True, help="Use a tiny model on the CPU; takes seconds.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(SECTIONS)),
    help="Run only this section; may be repeated. The report keeps what it has of others.",
)
@click.option("--rank-of", type=click.Path(path_type=Path), hidden=True)
def main(out: Path, minutes: float, toy: bool, only: tuple[str, ...], rank_of: Path | None) -> None:
    """Run the benchmark and write the report; the exit code is 1 if a section failed."""
    import torch

    if rank_of is not None:
        given = json.loads(rank_of.read_text())
        size, pairs = Size(*given["size"]), [PairSize(*pair) for pair in given["pairs"]]
        train_rank(Setting(size, given["gpu"], Path(given["model"]), Path(given["work"]), pairs), out)
        return
    if not toy and not torch.cuda.is_available():
        raise click.ClickException("no GPU on this machine; use --toy to test the script on the CPU")
    small = Size(hidden=64, layers=1, vocabulary=128, steps=2, batch=8, scale=0.1)
    size = small if toy else Size(hidden=2048, layers=16, vocabulary=128_256, steps=4, batch=32, scale=3.0)
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "model", size)
        pairs = some_pairs("traces", max(size.steps * size.batch, 32), size)
        report = run(Setting(size, not toy, model, Path(folder), pairs), out, minutes, only)
    click.echo(json.dumps(report["sections"], indent=1))
    if any("error" in section for section in report["sections"].values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
