"""Tests that the guardian of a line's gangs continues after errors, reports a repeated error once, and stops on request."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from contracts.errors import Retryable
from contracts.loop import Loop
from flows.config.home import Home
from flows.engine import wiring

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

    def __init__(self, stop: Event, *looks: list[str] | Exception) -> None:
        self.stop, self.looks = stop, list(looks)

    def guard(self) -> list[str]:
        look = self.looks.pop(0)
        if not self.looks:
            self.stop.set()
        if isinstance(look, Exception):
            raise look
        return look


def test_a_guard_outlives_whatever_goes_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stop = Event()
    away, defect = Retryable("the API server does not answer"), ValueError("nobody foresaw this")
    watched = Watched(stop, away, away, ["restarted a"], away, defect, defect, [], ["restarted b"])
    monkeypatch.setattr(wiring, "open_cluster", lambda *_: watched)
    said = list(wiring.guard_cluster(LOOP, tmp_path, Home(tmp_path), 0.0, once=False, stop=stop))
    assert said == [str(away), "restarted a", str(away), "the guardian failed: ValueError: nobody foresaw this", "restarted b"]


def test_one_look_raises_what_goes_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(wiring, "open_cluster", lambda *_: Watched(Event(), Retryable("away")))
    with pytest.raises(Retryable, match="away"):
        list(wiring.guard_cluster(LOOP, tmp_path, Home(tmp_path), 0.0, once=True))
