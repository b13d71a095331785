"""Cases of undisturbed training."""

from __future__ import annotations

from typing import Any

import pytest

from tests.nemo.runs import Bench, Run


@pytest.fixture(scope="session")
def undisturbed(bench: Bench) -> Run:
    return bench.job(steps=8, save_every=2).done()


def test_full_weights_are_trained_and_published(undisturbed: Run, told: dict[str, Any]) -> None:
    figures = undisturbed.figures()
    print(figures)
    assert sorted(figures) == list(range(1, 9))
