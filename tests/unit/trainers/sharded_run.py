"""Program for torchrun on two CPU processes: `sharded_run.py MODEL WORK` trains three steps and prints the results.

It trains all weights and an adapter, each of them unsharded and sharded. The library shards only on GPUs, so the program makes it treat the
processes as GPU processes. No other change is needed, because FSDP2 itself runs on CPUs over gloo. The library's own code for sharding,
gathering of state, checkpoints and resuming is therefore tested.
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


def trainer_in(work: Path, model: Path, sharded: bool, lora: bool) -> Any:
    """Return a DPO trainer that writes to `work`, optionally sharded and with an adapter."""
    from peft import LoraConfig
    from transformers import AutoTokenizer

    from trainers.job.parallel import sharding
    from trainers.job.trl.dpo_trainer import Stepwise, configuration, placeholder
    from trainers.job.trl.reference_logps import computed

    own = dpo_trainers.recipe(micro_tokens=150, losses={"sigmoid": 1.0, "sft": 0.5})
    given = dpo_trainers.shared(work) | {"save_strategy": "steps", "save_steps": 1} | (sharding(model, gpus=2) if sharded else {})
    pairs = dpo_trainers.PAIRS * 3
    return Stepwise(
        own,
        pairs,
        [1.0] * len(pairs),
        lambda trainer: computed(trainer, range(len(pairs))),
        model=str(model),
        args=configuration(own, given),
        train_dataset=placeholder(),
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM") if lora else None,
    )


def figures(trainer: Any, work: Path, model: Path) -> dict[str, Any]:
    """Return losses, gradient norms and the sums of the published weights. All ranks must call this function."""
    from safetensors.torch import load_file

    from trainers.job.trl.runner import save

    job = SimpleNamespace(run=model.parent, folder=work)
    save(trainer, job)  # type: ignore[arg-type]
    history = trainer.state.log_history
    return {
        "losses": [entry["loss"] for entry in history if "loss" in entry],
        "norms": [entry["grad_norm"] for entry in history if "grad_norm" in entry],
        "published": {name: float(value.double().abs().sum()) for name, value in load_file(work / "model" / "model.safetensors").items()},
        "parameters": type(next(trainer.model.parameters())).__name__,
    }


def runs(mode: str, model: Path, work: Path, lora: bool) -> list[dict[str, Any]]:
    """Return the results of a run and of the same run resumed after its first step."""
    found = []
    for resume in (None, str(work / "checkpoint-1")):
        trainer = trainer_in(work, model, mode == "sharded", lora)
        trainer.train(resume_from_checkpoint=resume)
        found.append(figures(trainer, work, model))
    return found


def main(model: Path, work: Path) -> None:
    """Train in all modes and print the results on rank 0."""
    import torch
    from accelerate.state import AcceleratorState

    found: dict[str, dict[str, Any]] = {"all weights": {}, "adapter": {}}
    for mode in ("whole", "sharded"):
        if mode == "sharded":
            AcceleratorState._reset_state(reset_partial_state=True)
            shard_on_cpus()
        for adapter, by_mode in found.items():
            by_mode[mode] = runs(mode, model, work / mode / adapter, adapter == "adapter")
    if torch.distributed.get_rank() == 0:
        print("RESULT " + json.dumps(found), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
