"""Many processes as one training run: how they are started, how they agree, and how a large model is spread over GPUs.

One process per GPU, started by torchrun on each node. One node finds its own meeting point; several take it from the
environment that the executor sets: RATCHET_NODES, RATCHET_NODE (this node's number, from 0), MASTER_ADDR, MASTER_PORT. All
nodes see one run folder, or, with RATCHET_APART, each has one of its own and something else carries between them what is written here.
Rank 0 alone writes events, checkpoints' manifests and the result. On GPUs a model is sharded by
FSDP2; on CPUs every process holds all of it (DDP). No GPU was there: FSDP2 was run on CPUs only, by a test that makes the library do so.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any

from contracts.errors import Permanent

PARENT = "RATCHET_PARENT"
"""Variable with the number of the process that started this one."""
LOOPBACK = "127.0.0.1"
"""Where the processes of a run on one machine meet. A number, because not every machine resolves a name."""


def rank() -> int:
    """This process's number among all of the run; 0 where it is alone."""
    return int(os.environ.get("RANK", "0"))


def alone() -> bool:
    """Whether the run is this process."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1


def node() -> int:
    """This machine's number among those of the job."""
    return int(os.environ.get("RATCHET_NODE", "0"))


def nodes() -> int:
    """How many machines the job has."""
    return int(os.environ.get("RATCHET_NODES", "1"))


def apart() -> bool:
    """Whether the nodes share no file system."""
    return os.environ.get("RATCHET_APART") == "1"


def bring_together(folder: Path) -> None:
    """What ranks of other nodes wrote of a checkpoint, their random numbers, onto rank 0's disk where the nodes share none. All ranks
    take part."""
    if not apart() or alone():
        return
    from accelerate.utils import gather_object

    own = folder.glob(f"rng_state_{rank()}.pth") if node() > 0 else ()
    for name, data in gather_object([(path.name, path.read_bytes()) for path in own]):
        if rank() == 0:
            (folder / name).write_bytes(data)


def command(module: str, grace: float) -> list[str]:
    """argv that trains with `module`: the module itself for one process, else the launcher with torchrun's options.

    `grace`: seconds that ranks have after SIGTERM. Permanent where several nodes are asked for and no meeting point is given.
    """
    machines, here = nodes(), int(os.environ.get("RATCHET_PROCESSES", "0"))
    if machines * here <= 1:  # none said: what trains sees to its own processes, as a Ray cluster does
        return [sys.executable, "-m", module]
    options = ["--nproc-per-node", str(here), "--max-restarts", "0", "--shutdown-timeout", str(max(1, int(grace)))]
    return [sys.executable, "-m", "trainers.inside.parallel", *options, *_meeting(machines), "-m", module]


def _meeting(machines: int) -> list[str]:
    if machines == 1:  # torchrun's own --standalone needs a machine that resolves "localhost"; a bare container may not
        return ["--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{LOOPBACK}:0", "--local-addr", LOOPBACK]
    missing = [name for name in ("RATCHET_NODE", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise Permanent(f"{machines} nodes, but {', '.join(missing)} is not set; the executor sets it on every node of the job")
    place = ["--master-addr", os.environ["MASTER_ADDR"], "--master-port", os.environ["MASTER_PORT"]]
    return ["--nnodes", str(machines), "--node-rank", os.environ["RATCHET_NODE"], *place]


def die_with_parent() -> None:
    """Linux: this process is killed when its parent is, so that no orphan goes on writing (prctl(2), PR_SET_PDEATHSIG).

    A parent that died before this call is known by its number, which it left in RATCHET_PARENT; ours is left there for our children.
    """
    told = os.environ.get(PARENT)
    parent = os.getppid() if told in (None, str(os.getpid())) else int(told)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
    os.environ[PARENT] = str(os.getpid())


def agreed(trainer: Any, flag: bool) -> bool:
    """Whether any rank says so; all ranks must ask together, and all hear the same."""
    if trainer.args.world_size == 1:
        return flag
    import torch

    said = torch.tensor(int(flag), device=trainer.accelerator.device)
    torch.distributed.all_reduce(said, op=torch.distributed.ReduceOp.MAX)
    return bool(said.item())


def sharding(model: Path, gpus: int) -> dict[str, Any]:
    """The library's arguments for FSDP2 where several GPUs train together; nothing else.

    State is gathered into whole, ordinary files on rank 0: they can be checked, and resumed with another number of ranks.
    """
    if gpus == 0 or alone():
        return {}
    return {
        "fsdp": True,
        "fsdp_config": {
            "version": 2,
            "reshard_after_forward": True,
            "state_dict_type": "FULL_STATE_DICT",
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": layers(model),
        },
    }


def layers(model: Path) -> list[str]:
    """Names of the classes of a model's repeated layers, which are sharded one by one. Permanent where the library names none."""
    import transformers

    (name,) = transformers.AutoConfig.from_pretrained(model).architectures[:1]
    names = sorted(getattr(getattr(transformers, name, None), "_no_split_modules", None) or ())
    if not names:
        raise Permanent(f"the library does not say which layers of {name} repeat, so it cannot be sharded; train it on one GPU")
    return names


if __name__ == "__main__":
    die_with_parent()
    from torch.distributed.run import main

    main(sys.argv[1:])
