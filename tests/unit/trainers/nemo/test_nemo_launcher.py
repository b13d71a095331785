"""Tests of the classes that replace those of the release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ratchet.trainers.job.nemo import launcher


class Policy:
    """A policy as in v0.7.0: its workers load the checkpoint that they are given, and then copy the reference."""

    def __init__(self, cluster: str, weights_path: Any = None, optimizer_path: Any = None, init_reference_model: bool = True) -> None:
        self.cluster = cluster
        self.weights = str(weights_path or "start")
        self.state = str(optimizer_path or "new")
        self.reference = self.weights if init_reference_model else None

    def run_all_workers_single_data(self, method: str, weights_path: str, optimizer_path: str | None) -> None:
        assert method == "load_checkpoint"
        self.weights, self.state = weights_path, str(optimizer_path)


@pytest.fixture
def policy(stub_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    from nemo_rl.algorithms import grpo

    monkeypatch.setattr(grpo, "Policy", Policy, raising=False)
    for name in ("Logger", "TimeoutChecker"):
        monkeypatch.setattr(grpo, name, getattr(grpo, name))
    assert launcher.hook(tmp_path) == {"TimeoutChecker": True, "Logger": True, "Policy": True}
    return grpo.Policy


def test_the_reference_of_a_resumed_run_is_the_start_model(policy: Any, tmp_path: Path) -> None:
    resumed = policy(cluster="c", weights_path=tmp_path / "step_4" / "w", optimizer_path=tmp_path / "step_4" / "o")
    assert resumed.reference == "start"
    assert (resumed.weights, resumed.state) == (str(tmp_path / "step_4" / "w"), str(tmp_path / "step_4" / "o"))


def test_a_new_run_and_a_run_without_reference_load_as_the_release_does(policy: Any) -> None:
    new = policy(cluster="c", weights_path=None, optimizer_path=None)
    assert (new.cluster, new.weights, new.state, new.reference) == ("c", "start", "new", "start")
    free = policy(cluster="c", weights_path="/w", optimizer_path="/o", init_reference_model=False)
    assert (free.weights, free.state, free.reference) == ("/w", "/o", None)


def test_a_release_without_a_policy_of_that_name_is_told(stub_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_rl.algorithms import grpo

    for name in ("Logger", "TimeoutChecker"):
        monkeypatch.setattr(grpo, name, getattr(grpo, name))
    assert launcher.hook(tmp_path)["Policy"] is False
