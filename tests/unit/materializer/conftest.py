"""Helpers for the materializer tests: small loop files, a clock, and datasets in a temporary folder."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from contracts.loop import Loop
from materializer.datasets import LakeDatasets
from rewards.scorer_set import build_scorer_set
from runtime.artifacts import FolderArtifacts
from tests.needs import shared_data

NOW = datetime(2026, 11, 1, tzinfo=UTC)


class SteppingClock:
    """Advances by one second each time it is read."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> datetime:
        self.time += timedelta(seconds=1)
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


def make_loop(**more: Any) -> Loop:
    """A loop with a JSONL source and an OTLP source. `more` replaces fields."""
    fields: dict[str, Any] = {
        "line": {"name": "math", "served_model": "m"},
        "sources": [{"name": "app", "kind": "jsonl", "path": "app"}, {"name": "gateway", "kind": "otlp", "path": "otlp"}],
        "rewards": [{"name": "final_number"}, {"name": "user_feedback"}],
    }
    return Loop.model_validate(fields | more)


def make_datasets(folder: Path, loop: Loop | None = None) -> LakeDatasets:
    """The datasets of `loop`, stored below `folder`."""
    loop = loop or make_loop()
    return LakeDatasets(
        folder / "lake", loop, folder, build_scorer_set(loop.rewards), FolderArtifacts(folder / "artifacts"), SteppingClock()
    )


@pytest.fixture(scope="session")
def traces() -> Path:
    """The shared GSM8K traces."""
    return shared_data("gsm8k_traces")
