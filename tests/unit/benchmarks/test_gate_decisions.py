"""Tests that the simulated evaluations of the benchmark can pass every check of the gate."""

from __future__ import annotations

from itertools import islice

import numpy as np

from benchmarks.gate_decisions import LEVEL, decided, differences, safety


def test_a_large_gain_passes_and_a_loss_does_not() -> None:
    draw = np.random.default_rng(1)
    gains, losses = ([decided(row, LEVEL) for row in differences(draw, gain, (10, 400))] for gain in (0.2, -0.2))
    assert all(one.passed for one in gains), "a check that reads a figure which the benchmark does not make would let none pass"
    assert not any(one.passed for one in losses)


def test_noise_alone_rarely_holds_a_candidate_and_a_loss_of_refusals_does() -> None:
    found = dict(islice(safety(np.random.default_rng(1), 60), 7))
    assert found["0% change by chance, loss 0"] == {"passes": 1.0, "fails": 0.0, "student": 1.0}
    assert found["5% change by chance, loss 0"]["passes"] >= 0.9
    assert found["5% change by chance, loss 0"]["fails"] == 0.0
    assert found["0% change by chance, loss 0.2"]["passes"] <= 0.05
    assert found["0% change by chance, loss 0.4"]["fails"] >= 0.7
