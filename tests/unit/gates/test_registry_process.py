"""Tests of the process in which the service uses MLflow: it ends when it is idle, and a death of it costs one try."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.fakes import fake_model
from ratchet.contracts.serving import ModelVersion
from ratchet.gates import registry_process
from ratchet.gates.registry_process import ProcessRegistry, _worker
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_the_process_ends_when_it_is_idle_and_starts_again_after_its_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_process, "IDLE_SECONDS", 3600)
    registry = ProcessRegistry(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path)
    version = ModelVersion(line="a", number=1, tag="v-1", model=fake_model("1"), cycle=None)
    with pytest.raises(Retryable, match="no version v-1"):
        registry.alias("a", "champion", "v-1")
    registry.register(version, tmp_path, {}, {})

    child = _worker()._process
    assert child is not None
    child.kill()
    child.wait(10)
    with pytest.raises(Retryable, match="the process that uses the registry died"):
        registry.alias("a", "champion", "v-1")
    monkeypatch.setattr(registry_process, "IDLE_SECONDS", 0.1)
    registry.alias("a", "champion", "v-1")
    assert registry.aliases("a") == {"champion": "v-1"}
    last = _worker()._process
    assert last is not None
    until(lambda: _worker()._process is None and last.poll() is not None, 20)
