"""Tests with the code of a release, if it is available.

RATCHET_NEMO_RL names source folders, separated by `:`. RATCHET_NEMO_PYTHON is the python of a virtual environment with the light
dependencies that docs/nemo_rl.md lists. No GPU is needed.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ratchet.contracts.jobs.training import Method
from ratchet.contracts.loop import RewardSettings
from ratchet.contracts.schema import stamped
from ratchet.rewards.scorer_set import build_scorer_set
from ratchet.trainers.backends.nemo.arithmetic import ClusterShape
from ratchet.trainers.backends.nemo.config import Places, RunCounts, render_config
from ratchet.trainers.backends.nemo.keys import refuse_unknown
from ratchet.trainers.backends.nemo.offline_checks import name_of
from ratchet.trainers.code_digest import code_digest
from ratchet.trainers.job.nemo import data, release
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.grpo import GRPORecipe
from tests.builders import make_plan
from tests.needs import Need, lacks
from tests.unit.trainers.nemo import offline_variants, variants
from tests.unit.trainers.nemo.advantages import CASES, padded

ROOTS = [Path(root) for root in os.environ.get("RATCHET_NEMO_RL", "").split(":") if root]
PYTHON = os.environ.get("RATCHET_NEMO_PYTHON", "")
HERE = Path(__file__).resolve()
pytestmark = pytest.mark.slow


@pytest.fixture(params=ROOTS or [Path()], ids=lambda root: root.name or "none")
def root(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the source folder of a release. Skips the test if none is available."""
    if not (ROOTS and PYTHON):
        lacks(Need.NEMO_RL, "RATCHET_NEMO_RL and RATCHET_NEMO_PYTHON are not set")
    monkeypatch.setenv("RATCHET_NEMO_RL", str(request.param))
    return Path(request.param)


def ask(task: str, root: Path, argument: Path) -> Any:
    """Run `real.py` with the release's python and return its answer."""
    paths = f"{root}{os.pathsep}{HERE.parents[4]}"
    environment = {
        **os.environ,
        "PYTHONPATH": paths,
        "HF_HOME": str(argument.parent / "hf"),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [PYTHON, str(HERE.with_name("real.py")), task, str(root), str(argument)],
        env=environment,
        cwd=argument.parent,
        capture_output=True,
        text=True,
        timeout=500,
    )
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert answers, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(answers[-1].removeprefix("ANSWER "))


def test_the_schema_of_the_release_accepts_every_variant_and_no_key_is_unknown(root: Path, tmp_path: Path) -> None:
    found = release.find()
    for name in variants.VARIANTS:
        config = variants.config(name, found.dialect, str(found.base))
        refuse_unknown(config, found.keys, str(root))
        release.write(config, tmp_path / f"{name}.yaml")
    resolved = ask("configs", root, tmp_path)
    assert set(resolved) == set(variants.VARIANTS)
    assert resolved["adapter"]["policy"]["dtensor_cfg"]["lora_cfg"]["dim"] == 8
    assert resolved["colocated"]["policy"]["logprob_batch_size"] == variants.recipe("colocated").micro_batch, (
        "the base file must interpolate this value"
    )
    assert resolved["no pull"]["grpo"]["adv_estimator"]["use_leave_one_out_baseline"] is False
    assert resolved["colocated"]["data"]["train"] == {"data_path": "/run/train.jsonl"}, "no example data may be inherited"


def test_the_schema_of_the_release_accepts_every_variant_of_sft_and_dpo(root: Path, tmp_path: Path) -> None:
    for name in offline_variants.VARIANTS:
        found = release.find(name_of(offline_variants.rendered(name)[0]))
        recipe, config = offline_variants.rendered(name, str(found.base))
        refuse_unknown(config, found.keys, str(root), name_of(recipe))
        release.write(config, tmp_path / f"{name}.yaml")
    resolved = ask("configs", root, tmp_path)
    assert set(resolved) == set(offline_variants.VARIANTS)
    assert resolved["sft_adapter_two_nodes"]["policy"]["make_sequence_length_divisible_by"] == 4
    assert resolved["sft"]["policy"]["tokenizer"] == {"name": "/run/model", "chat_template": "default", "chat_template_kwargs": None}
    assert resolved["dpo"]["policy"]["dtensor_cfg"]["_v2"] is True
    assert set(resolved["dpo"]["data"]["train"]) == {"dataset_name", "data_path"}, "no example data may be inherited"


def test_the_arithmetic_of_the_release_gives_unscored_answers_no_advantage(root: Path, tmp_path: Path) -> None:
    ways = [{"leave_one_out": one, "normalise": two} for one, two in itertools.product([True, False], repeat=2)]
    asked = [(way, groups, scores) for way in ways for groups, scores in CASES]
    cases = [{**way, "groups": groups, "rewards": padded(groups, scores)} for way, groups, scores in asked]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    found = ask("advantages", root, tmp_path / "cases.json")
    for (_, _, scores), advantages in zip(asked, found, strict=True):
        for score, advantage in zip(scores, advantages, strict=True):
            assert math.isfinite(advantage)
            assert score is not None or abs(advantage) < 1e-3
    assert max(abs(value) for advantages in found for value in advantages) > 0.5, "scored answers must have an advantage"


def test_the_release_runs_the_environment_the_data_and_the_hooks_of_the_product(root: Path, tmp_path: Path, tiny_model: Path) -> None:
    folder = tmp_path / "i1" / "work"  # as in a run: the reward actor finds its incarnation by the place of its journal
    folder.mkdir(parents=True)
    talk = [
        [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, {"role": "user", "content": f"up {n}"}]
        for n in range(20)
    ]
    pq.write_table(pa.table({"prompt": [json.dumps(one) for one in talk], "reference": ["yes"] * 20}), folder / "prompts.parquet")
    counts = data.write(folder, *data.split(data.rows(folder / "prompts.parquet"), 4, 1))
    recipe = complete(GRPORecipe, {"prompts_per_step": 2, "generations": 2})
    scorers = build_scorer_set([RewardSettings(name="exact_match")]).versions
    plan = make_plan(Method.GRPO, recipe.model_dump(mode="json"), code=code_digest(), scorers=scorers)
    (folder / "plan.json").write_bytes(stamped(plan))
    found = release.find()
    places = Places(
        base=str(found.base),
        model=str(tiny_model),
        train=str(folder / "train.jsonl"),
        validation=str(folder / "validation.jsonl"),
        checkpoints=str(folder / "checkpoints"),
        logs=str(folder / "logs"),
        plan=str(folder / "plan.json"),
        journal=str(folder / "rewards.jsonl"),
    )
    config = render_config(recipe, ClusterShape(1, 1), places, RunCounts(counts.train, counts.validation), 1, found.dialect)
    release.write(config, folder / "config.yaml")
    answer = ask("environment", root, folder)
    assert answer["hooks"] == {"TimeoutChecker": True, "Logger": True, "Policy": True}
    assert answer["rows"] == [18, 2]
    assert answer["rewards"] == [0.0, 1.0, 0.0, 1.0]
    assert answer["done"] == [True] * 4
    assert answer["multipliers"] == [1.0] * 4
    assert answer["turns"] == [2] * 4, "the log must have one message for the conversation and one for the answer"
    assert all(text.startswith("<user> one <assistant> two <end>") for text in answer["prompts"])
    assert answer["asked"] == [False, True, False], "the stop file must cause exactly one save, at the next step"
    assert json.loads((folder / "figures.jsonl").read_text().splitlines()[0])["figures"] == {"loss": 1.5}
    noted = json.loads((folder / "rewards.jsonl").read_text())
    assert noted.pop("seconds") >= 0
    assert noted == {"answers": 4, "abstained": 0}
    assert yaml.safe_load((folder / "config.yaml").read_text())["data"]["_override_"] is True
