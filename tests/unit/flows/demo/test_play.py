"""Tests of the messages of the demo."""

from __future__ import annotations

from pathlib import Path

from ratchet.flows.config.home import Home
from ratchet.flows.demo.play import Demo


def test_each_kind_of_status_is_reported_once(tmp_path: Path) -> None:
    said: list[str] = []
    demo = Demo(Home(tmp_path), said.append, lambda _context, _cycle: None)
    for status in (
        "cycle/kubectl/0001 waits: the rollout: 0 of 15 requests seen",
        "cycle/kubectl/0001 waits: the rollout: 11 of 15 requests seen",
        "cycle/kubectl/0001 waits: line/kubectl is leased by host/8004; retry after the lease expires",
        "cycle/kubectl/0001 waits: approval of rollout until 2026-11-22 22:44 UTC",
    ):
        demo._progress(status, 0, 0)
    demo._progress("querying v-1", 1, 2)
    demo._progress("querying v-1", 2, 2)
    told = [line.split("  ")[-1] for line in said]
    assert [words.split(": ")[1] for words in told] == ["the rollout", "approval of rollout until 2026-11-22 22:44 UTC", "2 answers"]
