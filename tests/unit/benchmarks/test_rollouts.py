"""Test of the benchmark of rollouts at a small scale: it runs with the product's judge, and its traffic is what it says."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.rollouts import DECISIONS, Traffic, World, main, run, window


@pytest.mark.slow
@pytest.mark.soak
def test_it_runs() -> None:
    done = CliRunner().invoke(main, ["--quick"])
    assert done.exit_code == 0, done.output
    assert done.output.count("decisions: ") == len(DECISIONS)
    assert "ratings: margin 0.05" in done.output


def test_the_candidate_gets_its_share_of_the_sessions_and_its_own_answers() -> None:
    traffic = Traffic(np.random.default_rng(1), World(loss=0.3, errors=(0.0, 0.1), slow=0.1))
    seen = window(traffic, 0, 20_000, 25).fresh
    old, new = seen.champion, seen.candidate
    assert new.requests / 20_000 == pytest.approx(0.25, abs=0.03)
    assert (old.errors, new.errors / new.requests) == (0, pytest.approx(0.1, abs=0.02))
    means = [sum(total for _, total in arm.rated) / sum(n for n, _ in arm.rated) for arm in (old, new)]
    assert means[0] - means[1] == pytest.approx(0.3, abs=0.05)
    assert sum(n for _, n in new.latencies) == new.requests - new.errors


def test_an_end_has_a_reason() -> None:
    ended = run(np.random.default_rng(1), World(errors=(0.0, 0.5)))
    assert (ended.end, ended.why.split(":")[0]) == ("rolled back", "the error share is higher")
    assert 0 < ended.candidate < 60
