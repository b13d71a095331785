"""Program for torchrun on two CPU processes: `sharded_run.py MODEL WORK` trains three steps and prints the results.

It trains DPO with all weights and with an adapter, and SFT with all weights, each of them unsharded and sharded. The library shards only
on GPUs, so the program makes it treat the processes as GPU processes. No other change is needed, because FSDP2 itself runs
on CPUs over gloo. The library's own code for sharding, gathering of state, checkpoints and resuming is therefore tested.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.unit.trainers import dpo_trainers


def shard_on_cpus() -> None:
    """Make the library treat CPU processes as GPU processes."""
    from accelerate.state import DistributedType, PartialState

    real = PartialState.__init__

    def pretending(self: Any, *given: Any, **named: Any) -> None:
        real(self, *given, **named)
        if self._shared_state["distributed_type"] == DistributedType.MULTI_CPU:
            self._shared_state["distributed_type"] = DistributedType.MULTI_GPU

    PartialState.__init__ = pretending


class Loads:
    """Counts how often the library reads a model, and the bytes of weights that this process holds then."""

    def __init__(self) -> None:
        self.calls = 0
        self.bytes = 0

    def watch(self) -> None:
        """Count the calls of the library from now on."""
        from trl.trainer import dpo_trainer, sft_trainer

        real = dpo_trainer.create_model_from_path

        def counting(*given: Any, **named: Any) -> Any:
            model = real(*given, **named)
            self.calls += 1
            self.bytes += sum(value.numel() * value.element_size() for value in model.parameters() if not value.is_meta)
            return model

        dpo_trainer.create_model_from_path = sft_trainer.create_model_from_path = counting

    def taken(self) -> list[tuple[int, int]]:
        """Return (calls, bytes) of every rank since the last call of this method."""
        from accelerate.utils import gather_object

        own = [(self.calls, self.bytes)]
        self.calls = self.bytes = 0
        return list(gather_object(own))


LOADS = Loads()


def sft_in(work: Path, model: Path, sharded: bool) -> Any:
    """Return the product's SFT trainer that writes to `work`, on a job with invented demonstrations."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ratchet.trainers.job.parallel import rank, sharding
    from ratchet.trainers.job.trl import sft
    from ratchet.trainers.recipes.completion import complete
    from ratchet.trainers.recipes.sft import SFTRecipe

    run = work.parent / f"{work.name}-run-{rank()}"
    run.mkdir(parents=True, exist_ok=True)
    if not (run / "model").exists():
        (run / "model").symlink_to(model)
    words = ("one", "two", "three four five six", "yes no")
    rows = [(json.dumps([{"role": "user", "content": word}]), other) for word in words for other in words]
    columns = {"prompt": [row[0] for row in rows], "answer": [row[1] for row in rows], "weight": [1.0] * len(rows)}
    pq.write_table(pa.table(columns), run / "demonstrations.parquet")
    recipe = complete(SFTRecipe, {"batch": 12, "micro_batch": 3, "max_length": 48, "steps": 3})
    job: Any = SimpleNamespace(
        run=run, recipe=lambda _: recipe, plan=SimpleNamespace(seed=3), events=SimpleNamespace(write=print), row_weights={}
    )
    given = dpo_trainers.shared(work, 3) | {"save_strategy": "steps", "save_steps": 1} | (sharding(model, gpus=2) if sharded else {})
    return sft.build(job, given)


def trainer_in(work: Path, model: Path, sharded: bool, lora: bool) -> Any:
    """Return a DPO trainer that writes to `work`, optionally sharded and with an adapter."""
    from peft import LoraConfig
    from transformers import AutoTokenizer

    from ratchet.trainers.job.parallel import sharding
    from ratchet.trainers.job.trl.dpo_trainer import Stepwise, configuration, placeholder
    from ratchet.trainers.job.trl.reference_logps import computed
    from ratchet.trainers.job.trl.start_model import policy

    own = dpo_trainers.recipe(micro_tokens=150, losses={"sigmoid": 1.0, "sft": 0.5})
    given = dpo_trainers.shared(work) | {"save_strategy": "steps", "save_steps": 1} | (sharding(model, gpus=2) if sharded else {})
    pairs = dpo_trainers.PAIRS * 3
    return Stepwise(
        own,
        pairs,
        [1.0] * len(pairs),
        lambda trainer: computed(trainer, range(len(pairs))),
        model=policy(model, given),
        args=configuration(own, given),
        train_dataset=placeholder(),
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM") if lora else None,
    )


def figures(trainer: Any, work: Path, model: Path) -> dict[str, Any]:
    """Return losses, gradient norms and the sums of the published weights. All ranks must call this function."""
    from safetensors.torch import load_file

    from ratchet.trainers.job.trl.runner import save

    plan = SimpleNamespace(start=SimpleNamespace(files="0" * 64))
    job = SimpleNamespace(run=model.parent, folder=work, plan=plan)
    save(trainer, job)  # type: ignore[arg-type]
    history = trainer.state.log_history
    return {
        "losses": [entry["loss"] for entry in history if "loss" in entry],
        "norms": [entry["grad_norm"] for entry in history if "grad_norm" in entry],
        "published": {name: float(value.double().abs().sum()) for name, value in load_file(work / "model" / "model.safetensors").items()},
        "loads": LOADS.taken(),
        "parameters": type(next(trainer.model.parameters())).__name__,
    }


def runs(mode: str, model: Path, work: Path, kind: str) -> list[dict[str, Any]]:
    """Return the results of a run and of the same run resumed after its first step."""
    found = []
    for resume in (None, str(work / "checkpoint-1")):
        sharded = mode == "sharded"
        trainer = sft_in(work, model, sharded) if kind == "sft" else trainer_in(work, model, sharded, kind == "adapter")
        trainer.train(resume_from_checkpoint=resume)
        found.append(figures(trainer, work, model))
    return found


def main(model: Path, work: Path) -> None:
    """Train in all modes and print the results on rank 0."""
    import torch
    from accelerate.state import AcceleratorState

    sys.modules.setdefault("bitsandbytes", None)  # type: ignore[arg-type]  # as trainers/job/trl/runner.py does
    LOADS.watch()
    found: dict[str, dict[str, Any]] = {"all weights": {}, "adapter": {}, "sft": {}}
    for mode in ("whole", "sharded"):
        if mode == "sharded":
            AcceleratorState._reset_state(reset_partial_state=True)
            shard_on_cpus()
        for kind, by_mode in found.items():
            by_mode[mode] = runs(mode, model, work / mode / kind, kind)
    if torch.distributed.get_rank() == 0:
        print("RESULT " + json.dumps(found), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
