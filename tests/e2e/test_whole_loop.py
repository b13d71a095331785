"""End-to-end tests of the whole loop without fakes: the demo as a new user runs it, and a cycle over real traces."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.command import ROOT, ratchet
from tests.foreign_packages import foreign_packages
from tests.needs import shared_data

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def run(home: Path, *args: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a `ratchet` command with this home folder and assert that it succeeds."""
    done = ratchet(*args, home=home, cwd=cwd, timeout=1500, fresh=True, HF_HUB_OFFLINE="1", **variables)
    assert done.returncode == 0, f"{args}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def left_running(home: Path) -> list[int]:
    """Return the ids of the other processes whose command line contains the folder."""
    return [p.pid for p in psutil.process_iter(["cmdline"]) if str(home) in " ".join(p.info["cmdline"] or ()) and p.pid != os.getpid()]


def test_demo_promotes_the_better_model_and_not_the_worse_one(tmp_path: Path) -> None:
    home, folder = tmp_path / "demo", foreign_packages(tmp_path / "project")
    try:
        said = run(home, "demo", "--home", str(home), cwd=folder, PYTHONPATH=str(folder))
        first, second = json.loads(run(home, "status", "--json").stdout)[0]["cycles"]
        assert first["state"] == "promoted", f"{first['state']}: {first['reason']}"
        assert second["state"] in ("rejected", "rolled_back"), f"{second['state']}: {second['reason']}"
        assert re.search(r"Prefect UI +http://127\.0\.0\.1:", said.stderr)
        assert "Result    promoted: the candidate now serves all users" in said.stderr
        assert "evidence of" not in said.stderr + said.stdout, "the figures of the tests belong to `ratchet explain`"
        assert "the rollout showed no harm (at 5 %" in first["reason"]

        story = run(home, "explain", "kubectl/1").stdout
        for chapter in (
            "Opened",
            "Data",
            "Probe",
            "Choice",
            "Training",
            "Gate",
            "Verdict",
            "Approval of the rollout",
            "Rollout",
            "Ended: promoted",
        ):
            assert chapter in story
        assert "Approved by ada (identity claimed, via prefect)" in story

        entries = [row for row in json.loads(run(home, "explain", "kubectl/1", "--json").stdout) if row["kind"] == "done"]
        overall = next(row for row in entries if row["key"] == "evaluate")["data"]["report"]["comparisons"][0]
        assert overall["difference"]["low"] > 0.02
        weights = [row["data"]["weight"] for row in entries if row["stream"].startswith("rollout/") and "weight" in row["data"]]
        assert weights == [5, 25, 100]

        page = (home / "reports" / "kubectl.html").read_text()
        assert page.count("<svg") >= 4
        assert "all hash chains valid" in run(home, "verify").stderr
    finally:
        run(home, "demo", "--home", str(home), "--stop")
    assert left_running(home) == []


def shortened(loop: str, traces: Path, folder: Path) -> str:
    """Return the text of loops/02-gsm8k/loop.toml for a shorter test: fewer steps and prompts, shorter answers."""
    golden = folder / "golden.jsonl"
    golden.write_text("\n".join((traces / "gsm8k_eval.jsonl").read_text().splitlines()[:40]))
    data = "../../../shared/data/gsm8k_traces"
    for found, instead in (
        (f"{data}/gsm8k_eval.jsonl", str(golden)),
        (data, str(traces)),
        ("fraction = 0.2", "fraction = 0.2\nmax_size = 100"),
        ("prompts = 40", "prompts = 20"),
        ("max_tokens = 120", "max_tokens = 40"),
        ("max_tokens = 160", "max_tokens = 40"),
        ("steps = 60", "steps = 6"),
    ):
        assert found in loop
        loop = loop.replace(found, instead)
    return loop


@pytest.mark.soak
@pytest.mark.timeout(1200)  # training and evaluation take minutes, more on a busy machine
def test_candidate_from_traces_that_are_too_hard_does_not_pass_the_gate(tmp_path: Path) -> None:
    traces = shared_data("gsm8k_traces")
    home, loop = tmp_path / "home", tmp_path / "gsm8k.toml"
    loop.write_text(shortened((ROOT / "loops" / "02-gsm8k" / "loop.toml").read_text(), traces, tmp_path))
    try:
        subprocess.run(
            [sys.executable, "-m", "ratchet.flows.demo.gsm8k", str(traces), str(home / "base"), "--steps", "10"],
            check=True,
            cwd=ROOT,
            capture_output=True,
        )
        run(home, "adopt", str(loop), str(home / "base"), "--by", "ada")
        ended = json.loads(run(home, "run", str(loop), "--json").stdout)
        assert ended["state"] in ("held", "rejected"), ended
        assert "quality" in ended["reason"]
        champion = json.loads(run(home, "status", "--json").stdout)[0]
        assert champion["previous"] is None  # no other version has ever served
        story = run(home, "explain", "gsm8k").stdout
        assert "The evidence is inconclusive, so the candidate is held." in story or "The candidate fails." in story
        assert "DPO: " in story
    finally:
        run(home, "serve", str(loop), "--stop")
    assert left_running(home) == []
