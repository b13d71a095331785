"""Tests of the prompts and of the sampling engine of GRPO on TRL."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.contracts.errors import Permanent
from ratchet.trainers.job.left_out import UNRENDERED, leave_out
from ratchet.trainers.job.trl import grpo
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.grpo import GRPORecipe

pytestmark = pytest.mark.slow  # TRL takes seconds to load


@pytest.fixture
def job(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a job with prompts of two, four and forty words."""
    (tmp_path / "model").symlink_to(tiny_model)
    prompts = [json.dumps([{"role": "user", "content": " ".join(["one"] * words)}]) for words in (2, 4, 40)]
    pq.write_table(pa.table({"prompt": prompts, "reference": ["yes"] * 3}), tmp_path / "prompts.parquet")
    monkeypatch.setattr("ratchet.rewards.scorer_set.scores_without_reference", lambda _: False)
    said: list[str] = []
    events = SimpleNamespace(write=lambda kind, **data: said.append(f"{kind}: {data['reason']}"))
    return SimpleNamespace(run=tmp_path, plan=None, events=events, said=said)


def tokenizer(tiny_model: Path) -> Any:
    """Return the tokenizer of the tiny model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model, trust_remote_code=False)


@pytest.mark.parametrize(
    ("changes", "kept", "longest"),
    [
        ({"nemo": {"max_prompt": 1024}, "max_completion": 8}, 3, 42),
        ({"nemo": {"max_prompt": 16}, "max_completion": 8}, 2, 6),
        ({"nemo": {"max_prompt": 1024}, "max_completion": 40}, 2, 6),
    ],
    ids=["all fit", "over the limit", "over the model's context"],
)
def test_long_prompts_are_excluded_and_counted(job: Any, tiny_model: Path, changes: dict[str, Any], kept: int, longest: int) -> None:
    found, tokens, left = grpo.fitting(job.run, job.plan, tokenizer(tiny_model), complete(GRPORecipe, changes))
    assert (len(found), tokens) == (kept, longest)
    leave_out(job, left)
    assert len(job.said) == (kept < 3)
    assert all(line.startswith("warning: of 3 prompts, excluded: 1 longer than") for line in job.said)


def test_prompts_that_the_template_refuses_are_excluded_and_counted(job: Any, tiny_model: Path) -> None:
    loaded = tokenizer(tiny_model)
    refusing = "{% if messages[0].content == 'one one' %}{{ raise_exception('not two') }}{% endif %}"
    loaded.chat_template = refusing + loaded.chat_template
    found, longest, left = grpo.fitting(job.run, job.plan, loaded, complete(GRPORecipe, {"max_completion": 8}))
    assert [len(row["prompt"][0]["content"].split()) for row in found] == [4, 40]
    assert (longest, left.reasons) == (42, {UNRENDERED: 1})
    loaded.chat_template = "{{ raise_exception('never') }}"
    *_, left = grpo.fitting(job.run, job.plan, loaded, complete(GRPORecipe, {"max_completion": 8}))
    with pytest.raises(Permanent, match="all 3 prompts are excluded: 3 that the chat template refuses"):
        leave_out(job, left)


def test_a_training_set_of_long_prompts_only_is_refused(job: Any, tiny_model: Path) -> None:
    recipe = complete(GRPORecipe, {"nemo": {"max_prompt": 3}, "max_completion": 8})
    *_, left = grpo.fitting(job.run, job.plan, tokenizer(tiny_model), recipe)
    with pytest.raises(Permanent, match=r"all 3 prompts are excluded: 3 longer than 3 tokens \(nemo\.max_prompt"):
        leave_out(job, left)
    with pytest.raises(Permanent, match="max_completion 64 leaves no room for a prompt in the model's context of 64"):
        grpo.fitting(job.run, job.plan, tokenizer(tiny_model), complete(GRPORecipe, {"max_completion": 64}))


def test_a_set_of_an_older_release_has_no_rewards_of_the_probe(job: Any) -> None:
    assert [row["probe_rewards"] for row in grpo.rows(job.run, job.plan)] == [None] * 3
    table = pq.read_table(job.run / "prompts.parquet")
    pq.write_table(table.append_column("probe_rewards", [["mixed", None, "equal"]]), job.run / "prompts.parquet")
    assert [row["probe_rewards"] for row in grpo.rows(job.run, job.plan)] == ["mixed", None, "equal"]


def test_groups_are_read_from_the_history_in_order() -> None:
    history = [{"step": 1, grpo.GROUPS: [[3, 1], [0, 0]]}, {"step": 1, "loss": 0.5}, {"step": 2, grpo.GROUPS: [[1, 1]]}]
    assert grpo.groups_of(history) == [(3, True), (0, False), (1, True)]
    assert grpo.groups_of([]) == []


def test_vllm_reserves_memory_for_the_longest_prompt_and_answer_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from trl import GRPOConfig

    monkeypatch.setattr(grpo, "unfit_vllm", lambda: None)
    found = grpo.sampling(complete(GRPORecipe, {"max_completion": 200}), gpus=1, longest=300)
    assert (found["vllm_max_model_length"], found["vllm_enable_sleep_mode"]) == (500, True)
    assert "use_vllm" not in grpo.sampling(complete(GRPORecipe, {"generation": "plain"}), gpus=1, longest=300)
    assert {name for name in found if name not in GRPOConfig.__dataclass_fields__} == set()


@pytest.mark.parametrize("without", [True, False])
def test_prompts_without_a_reference_are_kept_if_a_reward_of_the_job_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: bool
) -> None:
    prompts = [json.dumps([{"role": "user", "content": word}]) for word in ("one", "two")]
    pq.write_table(pa.table({"prompt": prompts, "reference": ["yes", None]}), tmp_path / "prompts.parquet")
    monkeypatch.setattr("ratchet.rewards.scorer_set.scores_without_reference", lambda _: without)
    plan: Any = None
    assert [row["reference"] for row in grpo.rows(tmp_path, plan)] == (["yes", None] if without else ["yes"])
