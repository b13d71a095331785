"""Run by torchrun on two CPU processes: one step on a model that FSDP2 has sharded, against the same step on whole copies.

Prints one JSON line on rank 0. PyTorch's own `fully_shard` runs on CPUs over gloo; what the library puts around it does not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.unit.trainers.test_stepwise import PAIRS, away_from_start, ours, recipe


def step(trainer: Any) -> tuple[float, dict[str, Any]]:
    """Loss and gradients, averaged over ranks as DDP and FSDP2 do."""
    loss = float(trainer.training_step(trainer.model, {"pairs": list(range(len(PAIRS)))}))
    return loss, {name: weight.grad for name, weight in trainer.model.named_parameters()}


def main(model: Path, work: Path) -> None:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from trainers.inside.parallel import layers

    own = recipe(micro_tokens=150, losses={"sigmoid": 1.0, "sft": 0.5})
    whole, sharded = (ours(model, work, own) for _ in range(2))
    for trainer in (whole, sharded):
        away_from_start(trainer.model)
    expected, wanted = step(whole)
    for gradient in wanted.values():
        torch.distributed.all_reduce(gradient)
        gradient /= 2
    mesh = init_device_mesh("cpu", (2,))
    for layer in [part for part in sharded.model.modules() if type(part).__name__ in layers(model)]:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded.model, mesh=mesh)
    loss, found = step(sharded)
    worst = max(float((value.full_tensor() - wanted[name]).abs().max() / wanted[name].abs().max()) for name, value in found.items())
    if torch.distributed.get_rank() == 0:
        kinds = sorted({type(value).__name__ for value in found.values()})
        groups = len(whole.groups(PAIRS))
        print("RESULT " + json.dumps({"expected": expected, "loss": loss, "worst": worst, "kinds": kinds, "groups": groups}), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
