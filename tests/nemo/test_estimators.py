"""The release creates the advantage estimator that a recipe or an override means, and trains with it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.trainers.backends.nemo.arithmetic import ClusterShape
from ratchet.trainers.backends.nemo.config import RunCounts, render_config
from ratchet.trainers.backends.nemo.overrides import with_overrides
from ratchet.trainers.job.nemo import release
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.grpo import GRPORecipe
from tests.command import ROOT
from tests.nemo.comparison import summary
from tests.nemo.runs import AUTOMODEL, PYTHON, STAND_INS, Bench, Run
from tests.unit.trainers.nemo.variants import PLACES

PLUS = {"grpo.adv_estimator.name": "reinforce_plus_plus"}
"""Override for the estimator of Reinforce++: the differences to the mean of the group, over the standard deviation in the batch."""
BASELINES = {True: [-1.0, 1 / 3, 1 / 3, 1 / 3], False: [-0.75, 0.25, 0.25, 0.25]}
"""Leave-one-out or not -> the differences of the rewards 0, 1, 1, 1 to their baselines."""
SCALES = {True: [1.0, 3**0.5, 3**0.5, 3**0.5], False: [2.0] * 4}
"""Leave-one-out or not -> one over the standard deviation of the other answers, or of the group. A deviation of 0 does not divide."""


def test_the_release_creates_the_estimator_that_the_recipe_means(root: Path, told: dict[str, Any], tmp_path: Path) -> None:
    base = str(root / release.BASE)
    for leave_one_out, scale in itertools.product((True, False), ("group", "none")):
        recipe = complete(GRPORecipe, {"steps": 9, "scale_rewards": scale, "nemo": {"leave_one_out": leave_one_out}})
        places = type(PLACES)(**{**vars(PLACES), "base": base})
        config = render_config(recipe, ClusterShape(1, 1), places, RunCounts(64, 16), 1)
        (tmp_path / f"{leave_one_out}-{scale}.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (tmp_path / "plus.yaml").write_text(yaml.safe_dump(with_overrides(config, PLUS), sort_keys=False))
    paths = os.pathsep.join(map(str, [STAND_INS, ROOT, root, root / AUTOMODEL]))
    environment = {**os.environ, "PYTHONPATH": paths, "NEMO_STAND_INS": "1", "NEMO_STAND_INS_GPUS": "1"}
    program = [str(PYTHON), str(Path(__file__).with_name("estimators.py")), str(tmp_path)]
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    answers = [line for line in ran.stdout.splitlines() if line.startswith("ANSWER ")]
    assert answers, ran.stderr[-3000:]
    found = json.loads(answers[0].removeprefix("ANSWER "))
    told |= {name: one["estimator"] for name, one in found.items()}
    plus = found.pop("plus")
    assert plus["estimator"] == "ReinforcePlusPlusAdvantageEstimator"
    assert plus["advantages"] == pytest.approx([-(3**0.5), *[3**-0.5] * 3], abs=1e-4)
    assert {one["estimator"] for one in found.values()} == {"GRPOAdvantageEstimator"}
    for leave_one_out in (True, False):
        assert found[f"{leave_one_out}-none"]["advantages"] == pytest.approx(BASELINES[leave_one_out], abs=1e-4)
        scaled = [scale * value for scale, value in zip(SCALES[leave_one_out], BASELINES[leave_one_out], strict=True)]
        assert found[f"{leave_one_out}-group"]["advantages"] == pytest.approx(scaled, abs=1e-4)


def test_reinforce_plus_plus_trains(bench: Bench, undisturbed: Run, told: dict[str, Any]) -> None:
    run = bench.job(steps=3, save_every=3, nemo={"overrides": PLUS}).done()
    figures = run.figures()
    told |= summary(figures)
    assert list(figures) == [1, 2, 3]
    assert figures[1]["reward"] == undisturbed.figures()[1]["reward"], "the first answers are those of GRPO"
    assert figures[1]["grad_norm"] != pytest.approx(undisturbed.figures()[1]["grad_norm"], rel=1e-3), "their advantages are not"
    assert figures[3]["kl"] > 0
