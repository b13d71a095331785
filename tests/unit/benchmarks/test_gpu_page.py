"""Tests of the page of the GPU benchmark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command import ROOT

SIZE = {"hidden": 64, "layers": 1, "vocabulary": 128}
FAST = {"tokens_per_s_warm": 4.0, "tokens_per_s_cold": 2.0, "peak_gib": 1.5, "over_plain_cold": 2.0, "loss_differs_at_most": 0.0}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import gpu_page
    finally:
        sys.path.pop(0)
    return gpu_page.page


def report(**sections: dict[str, Any]) -> dict[str, Any]:
    return {"date": "2026-11-27", "code": "abc", "device": "NVIDIA H100", "toy": False, "size": SIZE, "seconds": 12.5, "sections": sections}


def test_what_ran_what_did_not_and_what_broke_is_told_with_the_reason(page: Any) -> None:
    broke = {"error": "OutOfMemoryError: <no room>", "trace": "Traceback\n  <frame>"}
    shown = page(report(dpo={"plain script": {**FAST, "over_plain_cold": 1.0}, "ours": FAST}, vllm={"skipped": "needs vllm"}, sft=broke))
    assert "1 of 3 sections ran on NVIDIA H100; sft broke" in shown
    assert "2 times the tokens a second of the plain script" in shown
    assert "needs vllm" in shown
    assert "OutOfMemoryError: &lt;no room&gt;" in shown
    assert "&lt;frame&gt;" in shown
    assert "rehearsal" not in shown


def test_a_rehearsal_says_that_its_figures_mean_nothing(page: Any) -> None:
    assert "its figures say nothing about GPUs" in page({**report(sft={"tokens_per_s": 3.0}), "toy": True})


def test_figures_of_parts_are_shown(page: Any) -> None:
    shown = page(report(vllm={"plain": {"answer_tokens_per_s": 10.0}, "vllm": {"answer_tokens_per_s": 50.0}, "vllm_over_plain": 5.0}))
    assert "5 times as fast as without vLLM" in shown
    assert "<h3>plain</h3>" in shown


def test_jobs_are_shown_with_their_memory_and_what_failed(page: Any) -> None:
    ran = {"step_seconds": [1.5, 1.25], "job_seconds": 40.0, "peak_gib": 20.0, "expected_gib": 22.0, "expected_over_peak": 1.1}
    shown = page(report(jobs={"cases": {"SFT": ran, "GRPO": {"error": "RuntimeError: <died>"}}}))
    assert "the arithmetic gives 1.1 to 1.1 times the peak memory" in shown
    assert "1.5, 1.25" in shown
    assert "RuntimeError: &lt;died&gt;" in shown


def test_the_page_of_a_stored_report_is_written_beside_it(tmp_path: Path) -> None:
    import json

    (tmp_path / "r.json").write_text(json.dumps(report(sft={"tokens_per_s": 3.0})))
    subprocess.run([sys.executable, str(ROOT / "benchmarks" / "gpu_page.py"), str(tmp_path / "r.json")], check=True)
    assert "3 tokens a second" in (tmp_path / "r.html").read_text()
