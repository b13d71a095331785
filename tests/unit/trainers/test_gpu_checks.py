"""Tests of the checks of a GPU machine: each judgement on recorded facts, and the measurements that need no GPU."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.trainers import gpu_checks

H100 = "0, NVIDIA H100 80GB HBM3, 570.86.15, 81559, 4, Disabled, 0\n"
SECOND = "1, NVIDIA H100 80GB HBM3, 570.86.15, 81559, 4, Disabled, 0\n"


def levels(table: str) -> list[tuple[str, str]]:
    return [(level, about) for level, about, _ in gpu_checks.judge_gpus(gpu_checks.parse_gpus(table))]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (H100, [("ok", "GPU 0")]),
        ("0, NVIDIA T4, 535.1, 15360, [N/A], [N/A], [N/A]\n", [("ok", "GPU 0")]),
        (H100 + SECOND.replace(", 4,", ", 40000,"), [("ok", "GPU 0"), ("error", "GPU 1")]),
        (H100 + SECOND.replace(", 0\n", ", 3\n"), [("ok", "GPU 0"), ("error", "GPU 1")]),
        (H100 + "1, NVIDIA L4, 570.86.15, 23034, 0, [N/A], 0\n", [("ok", "GPU 0"), ("ok", "GPU 1"), ("error", "GPUs")]),
    ],
)
def test_gpus_must_be_free_healthy_and_equal(table: str, expected: list[tuple[str, str]]) -> None:
    assert levels(table) == expected


@pytest.mark.parametrize(
    ("capability", "built", "level"),
    [
        ((9, 0), ["sm_80", "sm_90"], "ok"),
        ((8, 9), ["sm_80", "sm_86", "sm_90"], "ok"),
        ((9, 0), ["sm_90a"], "ok"),
        ((12, 0), ["sm_90", "compute_90"], "ok"),
        ((12, 0), ["sm_80", "sm_90"], "error"),
        ((7, 0), ["sm_80", "compute_80"], "error"),
        ((9, 0), [], "error"),
    ],
)
def test_torch_needs_kernels_for_the_gpu(capability: tuple[int, int], built: list[str], level: str) -> None:
    assert gpu_checks.judge_architecture(capability, built)[0] == level


@pytest.mark.parametrize(("size", "gpus", "level"), [(64 << 20, 1, "error"), (1 << 30, 1, "ok"), (4 << 30, 8, "error"), (8 << 30, 8, "ok")])
def test_shared_memory_grows_with_the_gpus(size: int, gpus: int, level: str) -> None:
    assert gpu_checks.judge_shared_memory(size, gpus)[0] == level


def test_triton_needs_a_compiler_and_headers(tmp_path: Path) -> None:
    assert gpu_checks.judge_compiler({"cc": None, "gcc": None}, tmp_path)[0] == "error"
    assert "Python.h" in gpu_checks.judge_compiler({"cc": "/usr/bin/cc"}, tmp_path)[2]
    (tmp_path / "Python.h").touch()
    assert gpu_checks.judge_compiler({"cc": None, "gcc": "/usr/bin/gcc"}, tmp_path) == ("ok", "compiler", "/usr/bin/gcc")


@pytest.mark.parametrize(
    ("devices", "provided", "plugin", "level"),
    [
        ([], False, False, "note"),
        (["mlx5_0"], True, False, "ok"),
        (["mlx5_0"], False, False, "error"),
        (["rdmap0s6"], True, False, "error"),
        (["efa_0"], True, True, "ok"),
    ],
)
def test_network_devices_must_be_usable(devices: list[str], provided: bool, plugin: bool, level: str) -> None:
    assert [found[0] for found in gpu_checks.judge_fabric(devices, provided, plugin)] == [level]


@pytest.mark.parametrize(
    ("files", "locked", "rdma", "levels"), [(-1, -1, True, []), (1024, 65536, False, ["note"]), (-1, 65536, True, ["error"])]
)
def test_limits_that_nccl_needs(files: int, locked: int, rdma: bool, levels: list[str]) -> None:
    assert [found[0] for found in gpu_checks.judge_limits(files, locked, rdma)] == levels


def test_disk_is_measured_and_judged(tmp_path: Path) -> None:
    written, read = gpu_checks.disk_speed(tmp_path, 16 << 20)
    assert written > 0
    assert read > 0
    assert list(tmp_path.iterdir()) == [], "the file is removed"
    assert gpu_checks.judge_disk(tmp_path, 1 << 30, 50e6, 1e9)[0] == "error"
    assert gpu_checks.judge_disk(tmp_path, 1 << 30, 500e6, 1e9)[0] == "ok"


@pytest.mark.slow
def test_a_check_that_fails_is_an_error_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho unknown output\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def broken() -> None:
        raise RuntimeError("CUDA driver initialization failed")

    monkeypatch.setattr(gpu_checks, "_torch", broken)
    found = {about: (level, text) for level, about, text in gpu_checks.run_checks(tmp_path, 1 << 20)}
    assert found["driver"][0] == "error"
    assert "CUDA driver initialization failed" in found["torch"][1]
    assert found["disk"][0] in ("ok", "error")
    assert found["code"][0] == "ok"


@pytest.mark.slow
def test_all_reduce_runs_in_real_processes() -> None:
    level, _, text = gpu_checks.all_reduce(2, 1 << 20)
    assert level == "ok", text
    assert text.startswith("gloo: all-reduce over 2 ranks at ")


@pytest.mark.slow
def test_the_program_prints_one_finding_per_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ratchet.trainers.gpu_checks", str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == int(any(level == "error" for level, _, _ in found)), done.stderr
    assert {"driver", "disk", "code"} <= {about for _, about, _ in found} | {"driver"}
