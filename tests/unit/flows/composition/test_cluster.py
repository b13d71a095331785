"""Tests of the guardian of a line's gangs: it continues after errors, reports a repeated error once, and stops on request."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.loop import Loop
from ratchet.flows.composition import cluster
from ratchet.flows.config.home import Home

LOOP = Loop.model_validate(
    {
        "line": {"name": "t", "served_model": "t"},
        "sources": [{"name": "in", "kind": "receiver"}],
        "rewards": [{"name": "exact_match"}],
        "cluster": {"image": "i", "volume": {"mount": "/fsx", "claim": "shared"}},
    }
)


class Watched:
    """An executor whose `guard` returns or raises the given results in turn. It sets `stop` with the last one."""

    def __init__(self, stop: Event, *results: list[str] | Exception) -> None:
        self.stop, self.results = stop, list(results)

    def guard(self) -> list[str]:
        result = self.results.pop(0)
        if not self.results:
            self.stop.set()
        if isinstance(result, Exception):
            raise result
        return result


def test_guardian_continues_after_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stop = Event()
    away, defect = Retryable("the API server does not answer"), ValueError("unexpected value")
    watched = Watched(stop, away, away, ["restarted a"], away, defect, defect, [], ["restarted b"])
    monkeypatch.setattr(cluster, "open_cluster", lambda *_: watched)
    reports = list(cluster.guard_cluster(LOOP, tmp_path, Home(tmp_path), 0.0, once=False, stop=stop))
    assert reports == [str(away), "restarted a", str(away), "the guardian failed: ValueError: unexpected value", "restarted b"]


def test_single_check_raises_its_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster, "open_cluster", lambda *_: Watched(Event(), Retryable("unavailable")))
    with pytest.raises(Retryable, match="unavailable"):
        list(cluster.guard_cluster(LOOP, tmp_path, Home(tmp_path), 0.0, once=True))
