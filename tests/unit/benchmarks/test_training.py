"""Tests that the training benchmarks run at a small scale and that their reports are complete."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainers.nemo.conftest import lay_out_release

ROOT = Path(__file__).resolve().parents[3]


def report(script: str, out: Path, *more: str, **variables: str) -> tuple[dict[str, Any], str]:
    """Run a benchmark script at a small scale and return its report, and what it wrote to standard error."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, str(ROOT / "benchmarks" / script), "--toy", "--out", str(out), *more]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return dict(json.loads(out.read_text())), done.stderr


@pytest.mark.slow
@pytest.mark.soak
def test_the_speed_of_dpo_is_measured_for_each_optimisation(tmp_path: Path) -> None:
    found, _ = report("dpo_speed.py", tmp_path / "speed.json")
    results = found["profiles"]["traces"]["results"]
    assert {"plain script", "ours, nothing switched on", "all"} < set(results)
    for name, result in results.items():
        assert result["loss_differs_at_most"] < 1e-5, name
        assert result["tokens_per_s_warm"] >= result["tokens_per_s_cold"] > 0, name


@pytest.mark.slow
@pytest.mark.soak
def test_the_gpu_report_has_every_section(tmp_path: Path) -> None:
    found, said = report("gpu.py", tmp_path / "gpu.json")
    assert found["toy"] is True
    assert set(found["sections"]) == {"dpo", "resume", "out_of_memory", "sft", "grpo", "vllm", "fsdp2", "nemo_rl"}
    assert found["sections"]["nemo_rl"] == {"skipped": "not measured: NeMo RL needs a GPU"}
    assert "nemo_rl: not measured: NeMo RL needs a GPU" in said
    assert found["sections"]["fsdp2"]["processes"] == 2
    assert found["sections"]["fsdp2"]["loss_differs_at_most"] < 1e-5
    assert found["sections"]["sft"]["tokens_per_s"] > 0
    assert "skipped" in found["sections"]["vllm"]
    assert found["sections"]["resume"]["largest_difference"] == 0.0
    assert found["sections"]["dpo"]["ours"]["shares_prompts"] is True
    short = found["sections"]["out_of_memory"]
    assert short["failed_with"].startswith("OutOfMemoryError")
    assert short["tokens_in_memory"][1] == short["tokens_in_memory"][0] // 2
    assert math.isfinite(short["loss_afterwards"])
    shown = (tmp_path / "gpu.html").read_text()
    assert "6 of 8 sections ran on cpu" in shown
    assert "A rehearsal on a CPU" in shown


@pytest.mark.slow
@pytest.mark.soak
def test_one_step_of_nemo_rl_runs_as_a_job_and_is_measured(tmp_path: Path) -> None:
    """The stand-in for the release has its files, its registries and its order of figures, but trains nothing."""
    release = lay_out_release(tmp_path / "nemo-rl")
    first = release / "nemo_rl" / "__init__.py"
    first.write_text(f'{first.read_text()}import os\n\nos.environ["STUB"] = "plain"\n')  # without Ray
    found, _ = report("gpu.py", tmp_path / "gpu.json", "--only", "nemo_rl", RATCHET_NEMO_RL=str(release))
    step = found["sections"]["nemo_rl"]
    assert (step["release"], step["gpus"], step["step_seconds"], step["generation_seconds"]) == ("0.7", 1, 0.2, 0.1)
    assert step["job_seconds"] > step["start_seconds"] > 0
    assert found["sections"]["dpo"] == {"skipped": "not measured: left out by --only"}


@pytest.mark.slow
@pytest.mark.soak
def test_without_the_image_of_nemo_rl_the_reason_is_printed_and_in_the_report(tmp_path: Path) -> None:
    found, said = report("gpu.py", tmp_path / "gpu.json", "--only", "nemo_rl", RATCHET_NEMO_RL=str(tmp_path / "absent"))
    reason = found["sections"]["nemo_rl"]["skipped"]
    assert reason.startswith("not measured: ")
    assert "run in a NeMo RL image" in reason
    assert reason in said


@pytest.mark.slow
def test_without_a_gpu_the_benchmark_fails_with_a_reason(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--out", str(tmp_path / "x.json")]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert "no GPU" in done.stderr
