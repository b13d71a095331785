"""Stand-ins for what needs a GPU: CUDA calls of torch, NCCL, CUDA IPC, NVML, Triton kernels, vLLM, and the environments of the workers.

`docs/nemo_rl.md` lists them beside what is real. The variables `NEMO_STAND_INS_*` are set by `tests/nemo/runs.py`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

WEIGHTS = os.environ.get("NEMO_STAND_INS_WEIGHTS", "weights.pt")
"""File through which the trained weights go from the policy workers to the generation."""
FACTORIES = (
    "tensor", "zeros", "ones", "empty", "full", "arange", "randn", "rand", "as_tensor", "randint", "zeros_like", "ones_like", "empty_like",
    "full_like",
)  # fmt: skip
"""Functions of torch that take a device."""


def _torch(torch: Any) -> None:
    """CUDA devices become the CPU, and NCCL becomes gloo."""

    def on_cpu(device: Any) -> Any:
        if isinstance(device, str) and device.startswith("cuda"):
            return "cpu"
        if isinstance(device, int) and not isinstance(device, bool):
            return "cpu"
        return torch.device("cpu") if isinstance(device, torch.device) and device.type == "cuda" else device

    def factory(function: Any) -> Any:
        @functools.wraps(function)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if "device" in named:
                named["device"] = on_cpu(named["device"])
            named.pop("pin_memory", None)
            return function(*arguments, **named)

        return wrapped

    def mover(function: Any) -> Any:
        @functools.wraps(function)
        def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
            placed = tuple(on_cpu(value) if isinstance(value, str | torch.device) else value for value in arguments)
            if "device" in named:
                named["device"] = on_cpu(named["device"])
            return function(self, *placed, **named)

        return wrapped

    from torch.utils import _device

    _device._device_constructors()  # it caches torch's own functions, so `with torch.device("meta")` still finds them below the wrappers
    for name in FACTORIES:
        setattr(torch, name, factory(getattr(torch, name)))
    for kind in (torch.Tensor, torch.nn.Module):
        kind.to = mover(kind.to)
        kind.cuda = lambda self, *_, **__: self
    torch.Tensor.pin_memory = lambda self, *_, **__: self
    cuda = torch.cuda
    cuda.current_device = lambda: 0
    cuda.set_device = cuda.synchronize = lambda *_: None
    cuda.empty_cache = cuda.reset_peak_memory_stats = lambda *_: None
    cuda.get_device_name = lambda *_: "NVIDIA H100 80GB HBM3"
    cuda.memory_allocated = cuda.memory_reserved = cuda.max_memory_allocated = lambda *_: 0
    _distributed(torch)


def _distributed(torch: Any) -> None:
    import torch.distributed.device_mesh as meshes

    begin, mesh = torch.distributed.init_process_group, meshes.init_device_mesh

    def init(backend: Any = None, *arguments: Any, **named: Any) -> Any:
        named.pop("device_id", None)
        return begin("gloo", *arguments, **named)

    def init_mesh(device_type: str, *arguments: Any, **named: Any) -> Any:
        return mesh("cpu", *arguments, **named)

    torch.distributed.init_process_group = torch.distributed.distributed_c10d.init_process_group = init
    meshes.init_device_mesh = torch.distributed.init_device_mesh = init_mesh


def _nvml(module: Any) -> None:
    """A GPU has an id and 1 GiB of free memory."""
    module.get_device_uuid = lambda index: f"GPU-cpu-{index}-{os.getpid()}"
    module.get_free_memory_bytes = lambda _index: 2**30


def _policy_utils(module: Any) -> None:
    """The trained weights go to a file instead of CUDA IPC.

    The function is replaced where the worker looks it up, because Ray copies the methods of the worker's class.
    """
    import torch

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def stream(params_generator: Any, buffer_size_bytes: int, zmq_socket: Any, rank: int, worker_name: str, **_: Any) -> None:
        state = {name: tensor.clone() for name, tensor in params_generator}  # collective: every rank takes part
        if rank == 0:
            torch.save(state, WEIGHTS + ".part")
            os.replace(WEIGHTS + ".part", WEIGHTS)  # noqa: PTH105 - not a Path

    module.stream_weights_via_ipc_zmq_impl = stream


def _automodel_setup(module: Any) -> None:
    """Adapters are computed by torch instead of Triton kernels.

    The release does not seed the random values with which an adapter begins. They are seeded here, so that two runs can be compared.
    """
    import torch

    own, build = module.PeftConfig.from_dict, module.setup_model_and_optimizer

    @functools.wraps(build)
    def seeded(*arguments: Any, **named: Any) -> Any:
        torch.manual_seed(7)
        return build(*arguments, **named)

    module.setup_model_and_optimizer = seeded
    module.PeftConfig.from_dict = staticmethod(lambda given: own({**given, "use_triton": False}))


def _virtual_cluster(module: Any) -> None:
    """A local Ray has as many logical GPUs as the job, and the run joins no Ray but the one in NEMO_STAND_INS_RAY.

    The release later looks for "the" Ray of the machine, which fails if there are several. RAY_ADDRESS names that of the run.
    """
    own, joined = module.ray.init, os.environ.get("NEMO_STAND_INS_RAY", "")

    @functools.wraps(own)
    def init(*arguments: Any, **named: Any) -> Any:
        if named.get("address") == "auto":
            if not joined:
                raise ConnectionError("the run starts its own Ray")
            named |= {"address": joined, "_temp_dir": None, "_node_ip_address": joined.partition(":")[0]}
        elif "address" not in named:
            gpus = int(os.environ["NEMO_STAND_INS_GPUS"])
            named |= {"num_gpus": gpus, "num_cpus": 16, "include_dashboard": False, "object_store_memory": 200_000_000}
        context = own(*arguments, **named)
        os.environ["RAY_ADDRESS"] = module.ray.get_runtime_context().gcs_address
        return context

    module.ray.init = init


def _registry(module: Any) -> None:
    """All actors run in this environment. The release builds an environment for each kind of worker with uv."""
    for name in module.ACTOR_ENVIRONMENT_REGISTRY:
        module.ACTOR_ENVIRONMENT_REGISTRY[name] = module.PY_EXECUTABLES.SYSTEM


def _grpo(module: Any) -> None:
    """Generation samples from a transformers model instead of vLLM."""
    from cpu_generation import CpuGeneration

    module.VllmGeneration = CpuGeneration


def _model_fit(module: Any) -> None:
    """With NEMO_STAND_INS_WITHOUT=refusal, a vocabulary that the ranks cannot share is not refused.

    It replaces nothing of the release. A case uses it to test how the health rules react to an error that no check finds before the run.
    """
    if os.environ.get("NEMO_STAND_INS_WITHOUT") == "refusal":
        module._shards = lambda *_: ()


STAND_INS: dict[str, Callable[[Any], None]] = {
    "torch": _torch,
    "nemo_rl.utils.nvml": _nvml,
    "nemo_rl.models.policy.utils": _policy_utils,
    "nemo_rl.models.automodel.setup": _automodel_setup,
    "nemo_rl.distributed.virtual_cluster": _virtual_cluster,
    "nemo_rl.distributed.ray_actor_environment_registry": _registry,
    "nemo_rl.algorithms.grpo": _grpo,
    "ratchet.trainers.job.model_fit": _model_fit,
}
"""Module -> what is replaced in it, applied once directly after its import."""
