"""Checks of a machine with GPUs before the first paid hour: driver, CUDA, NCCL, network, shared memory, compiler, disk.

`ratchet doctor --gpu` runs this module in a process of its own, because it loads torch. In the container that will train, run
`python -m ratchet.trainers.gpu_checks FOLDER`, where FOLDER is on the disk that the jobs write to.

Each finding is one line of JSON on stdout: [level, about, text]. The levels are ok, note and error; the text of an error contains the
remedy. The exit code is 1 if there was an error. The checks use at most 2 GiB of GPU memory and one gigabyte of disk. They ran on one
H200, and never on a machine with several GPUs or with EFA.
"""

from __future__ import annotations

import csv
import json
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

Finding = tuple[str, str, str]
"""(level, subject, text)"""
_QUERY = ("index", "name", "driver_version", "memory.total", "memory.used", "mig.mode.current", "ecc.errors.uncorrected.volatile.total")
_MIB = 1 << 20
_GIB = 1 << 30
_SHM = Path("/dev/shm")  # noqa: S108 -- its size is read
_SHARED_MEMORY = _GIB
"""Bytes of _SHM per GPU. NCCL and the loaders of training data exchange tensors through it; containers have 64 MiB by default."""
_SLOWEST_DISK = 100e6
"""Bytes per second. On a slower disk, the checkpoint of a model with one billion parameters takes more than two minutes."""
_FILES = 65_536
"""Open files. NCCL opens sockets to every rank."""
_MATRIX = 8192
_REDUCED = 256 << 20
"""Bytes that each rank contributes to the measured all-reduce."""
_PACKAGES = ("torch", "triton", "transformers", "trl", "accelerate", "peft", "bitsandbytes", "vllm", "ray")
_WORKER = "--all-reduce-worker"


class Gpu(NamedTuple):
    """One line of nvidia-smi's table."""

    number: str
    name: str
    driver: str
    memory: int
    """MiB"""
    used: int
    """MiB"""
    mig: bool
    """Whether the GPU is divided (Multi-Instance GPU)."""
    uncorrected: int
    """Memory errors since the driver was loaded that ECC could not correct."""


def parse_gpus(table: str) -> list[Gpu]:
    """Return the GPUs in nvidia-smi's CSV output for _QUERY. Raises ValueError if the output has another form.

    Values that a GPU does not report ("[N/A]") count as 0 or as not divided.
    """
    found = []
    for line in csv.reader(table.splitlines(), skipinitialspace=True):
        number, name, driver, memory, used, mig, errors = line
        found.append(Gpu(number, name, driver, _number(memory), _number(used), mig == "Enabled", _number(errors)))
    return found


def _number(text: str) -> int:
    return 0 if text.startswith("[") else int(text)


def judge_gpus(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Yield the findings about GPUs that are free for a job, healthy and equal."""
    for gpu in gpus:
        about = f"GPU {gpu.number}"
        if gpu.uncorrected:
            yield (
                "error",
                about,
                f"{gpu.uncorrected} memory errors that ECC could not correct; replace the node, its results are not reliable",
            )
        elif gpu.used > max(1024, gpu.memory // 20):
            yield "error", about, f"{gpu.used} MiB are in use by another process (see nvidia-smi); end it, or training runs out of memory"
        else:
            yield "ok", about, f"{gpu.name}, {gpu.memory} MiB, driver {gpu.driver}{', MIG enabled' if gpu.mig else ''}"
    if len({gpu.name for gpu in gpus}) > 1:
        yield "error", "GPUs", "the GPUs are of different types; a run would wait for the slowest one; use a machine with equal GPUs"


def judge_architecture(capability: tuple[int, int], built: Sequence[str]) -> Finding:
    """Return whether torch has kernels for a GPU of `capability`. `built` is torch.cuda.get_arch_list().

    A binary (sm_) runs on the same major version with the same or a later minor version, PTX (compute_) on every later GPU.
    """
    for name in built:
        kind, _, digits = name.rstrip("af").rpartition("_")
        target = int(digits[:-1]), int(digits[-1])
        if (kind == "sm" and target[0] == capability[0] and target[1] <= capability[1]) or (kind == "compute" and target <= capability):
            return "ok", "torch", f"has kernels for compute capability {capability[0]}.{capability[1]}"
    known = ", ".join(built) or "none"
    return (
        "error",
        "torch",
        f"has no kernels for compute capability {capability[0]}.{capability[1]} (built for {known}); install a newer torch",
    )


def judge_shared_memory(size: int, gpus: int) -> Finding:
    """Return whether /dev/shm, with `size` bytes, is large enough for the GPUs."""
    needed = max(1, gpus) * _SHARED_MEMORY
    if size >= needed:
        return "ok", "shared memory", f"{_SHM} has {size / _GIB:.1f} GiB"
    return (
        "error",
        "shared memory",
        f"{_SHM} has {size / _MIB:.0f} MiB, {needed // _GIB} GiB are needed; mount an emptyDir with medium Memory there, or run the "
        "container with --shm-size",
    )


def judge_compiler(commands: Mapping[str, str | None], headers: Path) -> Finding:
    """Return whether Triton can compile. `commands` is program -> its path or None; `headers` is Python's include folder."""
    found = next((path for path in commands.values() if path), None)
    if found is None:
        return "error", "compiler", "no C compiler; Triton compiles its kernels at run time: install gcc and the headers of libc"
    if not (headers / "Python.h").exists():
        return "error", "compiler", f"{headers}/Python.h is missing; Triton compiles against it: install python3-dev"
    return "ok", "compiler", found


def judge_limits(files: int, locked: int, rdma: bool) -> Iterator[Finding]:
    """Yield the findings about the soft limits of open files and of locked memory in bytes. `rdma`: whether the machine has RDMA devices.

    A limit of -1 means unlimited.
    """
    if 0 <= files < _FILES:
        yield "note", "open files", f"the limit is {files}; runs on many GPUs need {_FILES}: raise `ulimit -n`"
    if rdma and locked >= 0:
        yield "error", "locked memory", f"the limit is {locked // 1024} KiB; RDMA needs `ulimit -l unlimited`"


def judge_fabric(devices: Sequence[str], provided: bool, plugin: bool) -> Iterator[Finding]:
    """Yield the findings about RDMA `devices` (names below /sys/class/infiniband).

    `provided`: whether /dev/infiniband exists. `plugin`: whether NCCL's network plug-in, which EFA needs, can be loaded.
    """
    if not devices:
        yield "note", "network", "no RDMA device; several nodes would exchange gradients over TCP"
        return
    names = ", ".join(devices)
    if not provided:
        yield "error", "network", f"the machine has {names}, but /dev/infiniband is missing; request the devices in the pod's resources"
    elif any("efa" in name or name.startswith("rdmap") for name in devices) and not plugin:
        yield "error", "network", f"the machine has EFA ({names}), but libnccl-net.so is missing; use an image with aws-ofi-nccl"
    else:
        yield "ok", "network", names


def judge_disk(folder: Path, free: int, written: float, read: float) -> Finding:
    """Return whether the disk of `folder` is fast enough. `free` is in bytes, `written` and `read` in bytes per second."""
    text = f"{folder}: writes {written / 1e6:.0f} MB/s, reads {read / 1e6:.0f} MB/s, {free / _GIB:.0f} GiB free"
    if written < _SLOWEST_DISK:
        return "error", "disk", f"{text}; checkpoints would delay training: use a disk that writes {_SLOWEST_DISK / 1e6:.0f} MB/s"
    return "ok", "disk", text


def disk_speed(folder: Path, size: int) -> tuple[float, float]:
    """Write and read `size` bytes in a temporary file in `folder`, past the page cache; return both speeds in bytes per second.

    Propagates OSError.
    """
    block = os.urandom(8 * _MIB)
    blocks = max(1, size // len(block))
    with tempfile.TemporaryFile(dir=folder) as file:
        began = time.monotonic()
        for _ in range(blocks):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        written = time.monotonic() - began
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        began = time.monotonic()
        while file.read(len(block)):
            pass
        read = time.monotonic() - began
    total = blocks * len(block)
    return total / max(written, 1e-9), total / max(read, 1e-9)


def _driver() -> Iterator[Finding]:
    program = shutil.which("nvidia-smi")
    if program is None:
        yield "error", "driver", "nvidia-smi not found; install the NVIDIA driver, or run the container with --gpus all"
        return
    done = subprocess.run(
        [program, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=60
    )
    if done.returncode != 0:
        yield "error", "driver", f"nvidia-smi failed: {(done.stdout or done.stderr).strip()[:200]}; reinstall the NVIDIA driver"
        return
    gpus = parse_gpus(done.stdout)
    if not gpus:
        yield "error", "driver", "nvidia-smi lists no GPU; attach one, or set NVIDIA_VISIBLE_DEVICES"
    yield from judge_gpus(gpus)


def _torch() -> Iterator[Finding]:
    import torch

    about = f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}"
    if not torch.cuda.is_available():
        yield "error", "torch", f"{about}: finds no GPU; install a torch that is built for the CUDA version of the driver"
        return
    yield judge_architecture(torch.cuda.get_device_capability(), torch.cuda.get_arch_list())
    if not torch.cuda.is_bf16_supported():
        yield "error", "bfloat16", "the GPU does not compute in bfloat16; use a GPU of compute capability 8.0 or later"
        return
    a, b = (torch.randn(_MATRIX, _MATRIX, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    expected = a[:64].float() @ b.float()
    if not torch.allclose((a[:64] @ b).float(), expected, rtol=0.05, atol=4.0):
        yield "error", "bfloat16", "a matrix product differs from its float32 result; replace the GPU"
        return
    a @ b
    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(20):
        a @ b
    torch.cuda.synchronize()
    yield "ok", "bfloat16", f"{about}: {20 * 2 * _MATRIX**3 / (time.monotonic() - began) / 1e12:.0f} TFLOP/s in a matrix product"


def _compiler() -> Iterator[Finding]:
    yield judge_compiler(
        {name: shutil.which(name) for name in (os.environ.get("CC", "cc"), "gcc", "clang")}, Path(sysconfig.get_path("include"))
    )


def _all_reduce() -> Iterator[Finding]:
    import torch

    gpus = torch.cuda.device_count()
    if gpus < 2:
        yield "note", "NCCL", f"{gpus} GPU on this machine, so no exchange between GPUs was measured"
        return
    yield all_reduce(gpus, _REDUCED)


def all_reduce(processes: int, size: int) -> Finding:
    """Measure an all-reduce of `size` bytes per rank over `processes` ranks on this machine: NCCL with GPUs, gloo without."""
    from ratchet.trainers.job.parallel import LOOPBACK

    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--rdzv-backend", "c10d"]
    command += [
        "--rdzv-endpoint",
        f"{LOOPBACK}:0",
        "--local-addr",
        LOOPBACK,
        "--max-restarts",
        "0",
        "-m",
        "ratchet.trainers.gpu_checks",
        _WORKER,
        str(size),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    except subprocess.TimeoutExpired:
        return (
            "error",
            "NCCL",
            "an all-reduce over all GPUs did not end within 180 s; run with NCCL_DEBUG=INFO, and check PCIe ACS and NVLink",
        )
    if done.returncode != 0:
        return "error", "NCCL", f"an all-reduce over all GPUs failed: {done.stderr.strip()[-300:]}; run with NCCL_DEBUG=INFO"
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return "ok", "NCCL", f"{result['version']}: all-reduce over {processes} ranks at {result['bytes_per_second'] / 1e9:.1f} GB/s"


def _reduce(size: int) -> None:
    """Run one rank of the measured all-reduce. Rank 0 prints the result as JSON."""
    import torch
    import torch.distributed as dist

    gpu = torch.cuda.is_available()
    rank = int(os.environ["LOCAL_RANK"])
    if gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if gpu else "gloo")
    device = f"cuda:{rank}" if gpu else "cpu"
    tensor = torch.ones(size // 4, device=device)
    dist.all_reduce(tensor)
    if float(tensor[0]) != dist.get_world_size():
        raise SystemExit(f"the sum is {float(tensor[0])} instead of {dist.get_world_size()}")
    rounds = 5
    began = time.monotonic()
    for _ in range(rounds):
        dist.all_reduce(tensor)
    if gpu:
        torch.cuda.synchronize()
    seconds = time.monotonic() - began
    if rank == 0:
        library = "NCCL " + ".".join(map(str, torch.cuda.nccl.version())) if gpu else "gloo"
        sys.stdout.write(json.dumps({"version": library, "bytes_per_second": rounds * size / seconds}) + "\n")
    dist.destroy_process_group()


def _network() -> Iterator[Finding]:
    devices = sorted(path.name for path in Path("/sys/class/infiniband").glob("*"))
    yield from judge_fabric(devices, Path("/dev/infiniband").exists(), _loads("libnccl-net.so"))
    yield from judge_limits(resource.getrlimit(resource.RLIMIT_NOFILE)[0], resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], bool(devices))


def _loads(library: str) -> bool:
    import ctypes

    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _shared_memory() -> Iterator[Finding]:
    import torch

    yield judge_shared_memory(shutil.disk_usage(_SHM).total, torch.cuda.device_count())


def _code() -> Iterator[Finding]:
    from ratchet.trainers.code_digest import code_digest

    installed = {name: _version(name) for name in _PACKAGES}
    yield "ok", "versions", ", ".join(f"{name} {found}" for name, found in installed.items() if found)
    yield "ok", "code", f"{code_digest()[:12]}; the service refuses to train with other code than it has planned"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def run_checks(folder: Path, size: int) -> Iterator[Finding]:
    """Yield the findings of all checks. `size` is the number of bytes that the check of the disk of `folder` writes.

    A check that fails in an unexpected way is an error, and the others go on.
    """

    def disk() -> Iterator[Finding]:
        there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())  # the service creates its home later
        yield judge_disk(there, shutil.disk_usage(there).free, *disk_speed(there, size))

    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "driver": _driver,
        "torch": _torch,
        "compiler": _compiler,
        "shared memory": _shared_memory,
        "network": _network,
        "NCCL": _all_reduce,
        "disk": disk,
        "code": _code,
    }
    for name, check in checks.items():
        try:
            yield from check()
        except (OSError, RuntimeError, ValueError, ImportError, subprocess.TimeoutExpired) as error:
            yield "error", name, f"the check failed: {type(error).__name__}: {str(error)[:300]}"


def main(arguments: Sequence[str]) -> int:
    """Run all checks and return the exit code. The argument is the folder whose disk is measured (default: the current folder)."""
    if arguments[:1] == [_WORKER]:
        _reduce(int(arguments[1]))
        return 0
    failed = False
    for finding in run_checks(Path(arguments[0] if arguments else ".").absolute(), _GIB):
        sys.stdout.write(json.dumps(finding) + "\n")
        sys.stdout.flush()
        failed |= finding[0] == "error"
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
