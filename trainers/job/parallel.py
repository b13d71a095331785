"""Distributed training: start of the processes, agreement between ranks, and sharding of large models.

torchrun starts one process per GPU on each node. A single node chooses its own rendezvous. Several nodes read it from the environment
that the executor sets (`runtime/jobs/job_protocol.py`): NODES, NODE, MASTER_ADDRESS and MASTER_PORT. The nodes share one run folder. If
APART is set, each node has its own run folder, and another component transfers the written files.
Only rank 0 writes events, the manifests of checkpoints, and the result. On GPUs, the model is sharded with FSDP2. On CPUs, every
process holds the complete model (DDP). FSDP2 has not been run on GPUs; a test runs it on CPUs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import Permanent
from ratchet.runtime.jobs.job_protocol import APART, MASTER_ADDRESS, MASTER_PORT, NODE, NODES, PARENT, PROCESSES

LOOPBACK = "127.0.0.1"
"""Rendezvous address of a run on one machine. It is numeric because not every machine resolves a host name."""


def rank() -> int:
    """Return the global rank of this process; 0 for a single process."""
    return int(os.environ.get("RANK", "0"))


def alone() -> bool:
    """Return whether the run has a single process."""
    return world() == 1


def world() -> int:
    """Return the number of processes of the run, over all nodes."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def node() -> int:
    """Return the number of this node in the job, from 0."""
    return NODE.get(os.environ)


def nodes() -> int:
    """Return the number of nodes of the job."""
    return NODES.get(os.environ)


def apart() -> bool:
    """Return whether the nodes have no shared file system."""
    return APART.get(os.environ)


def bring_together(folder: Path) -> None:
    """Copy the checkpoint files of other nodes to the checkpoint `folder` of rank 0 if there is no shared file system.

    These files hold the random number states of the ranks. All ranks must call this function.
    """
    if not apart() or alone():
        return
    from accelerate.utils import gather_object

    own = folder.glob(f"rng_state_{rank()}.pth") if node() > 0 else ()
    for name, data in gather_object([(path.name, path.read_bytes()) for path in own]):
        if rank() == 0:
            (folder / name).write_bytes(data)


def launch_command(module: str, grace: float) -> list[str]:
    """Return the command line that trains with `module`: the module itself for one process, otherwise the torchrun launcher.

    `grace` is the time in seconds that the ranks have after SIGTERM. Raises Permanent for several nodes without a rendezvous.
    """
    machines, here = nodes(), PROCESSES.get(os.environ)
    if machines * here <= 1:  # without PROCESSES, the trainer starts its own processes, for example on Ray
        return [sys.executable, "-m", module]
    options = ["--nproc-per-node", str(here), "--max-restarts", "0", "--shutdown-timeout", str(max(1, int(grace)))]
    return [sys.executable, "-m", "ratchet.trainers.job.parallel", *options, *_meeting(machines), "-m", module]


def _meeting(machines: int) -> list[str]:
    if machines == 1:  # torchrun's --standalone needs "localhost" to resolve, which is not so in every container
        return ["--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{LOOPBACK}:0", "--local-addr", LOOPBACK]
    missing = [variable.name for variable in (NODE, MASTER_ADDRESS, MASTER_PORT) if not os.environ.get(variable.name)]
    if missing:
        raise Permanent(f"{machines} nodes, but {', '.join(missing)} is not set; the executor must set it on every node of the job")
    place = ["--master-addr", MASTER_ADDRESS.get(os.environ), "--master-port", str(MASTER_PORT.get(os.environ))]
    return ["--nnodes", str(machines), "--node-rank", str(node()), *place]


def die_with_parent() -> None:
    """Kill this process when its parent dies, so that no orphan continues to write (Linux: prctl(2), PR_SET_PDEATHSIG).

    If the parent died before this call, its process id in PARENT shows this, and the process is killed at once.
    The function then sets PARENT to the own process id, for the children.
    """
    recorded = PARENT.find(os.environ)
    parent = os.getppid() if recorded in (None, os.getpid()) else recorded
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
    os.environ.update(PARENT.to_env(os.getpid()))


def agreed(trainer: Any, flag: bool) -> bool:
    """Return whether `flag` is true on any rank. All ranks must call this function together and get the same result."""
    if trainer.args.world_size == 1:
        return flag
    import torch

    agreement = torch.tensor(int(flag), device=trainer.accelerator.device)
    torch.distributed.all_reduce(agreement, op=torch.distributed.ReduceOp.MAX)
    return bool(agreement.item())


def sharding(model: Path, gpus: int) -> dict[str, Any]:
    """Return the library arguments for FSDP2 if several GPUs train together, otherwise no arguments.

    The state is gathered into complete files on rank 0. So it can be verified, and resumed with another number of ranks.
    """
    if gpus == 0 or alone():
        return {}
    return {
        "fsdp": True,
        "fsdp_config": {
            "version": 2,
            "reshard_after_forward": True,
            "cpu_ram_efficient_loading": True,  # all ranks get their shards from rank 0; see `policy` in trl/start_model.py
            "state_dict_type": "FULL_STATE_DICT",
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": layers(model),
        },
    }


def layers(model: Path) -> list[str]:
    """Return the class names of the repeated layers of a model, which FSDP2 shards one by one.

    Raises Permanent if the library defines none for this model.
    """
    import transformers

    (name,) = transformers.AutoConfig.from_pretrained(model, trust_remote_code=False).architectures[:1]
    names = sorted(getattr(getattr(transformers, name, None), "_no_split_modules", None) or ())
    if not names:
        raise Permanent(f"the library does not define the repeated layers of {name}, so it cannot be sharded; train it on one GPU")
    return names


if __name__ == "__main__":
    die_with_parent()
    from torch.distributed.run import main

    main(sys.argv[1:])
