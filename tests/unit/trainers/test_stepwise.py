"""The fast step is the plain one: same loss, same gradients, for every loss and every way to lay a step out."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.inside.batches import OVERHEAD, Pair, plan
from trainers.recipes import DPORecipe, Loss, complete

CHANCE = random.Random(5)


def some_pairs(n: int) -> list[Pair]:
    """Prompts and answers of very different lengths; ids of the tiny model's words."""

    def ids(low: int, high: int) -> list[int]:
        return [CHANCE.randrange(5, 19) for _ in range(CHANCE.randint(low, high))]

    return [Pair(ids(1, 30), ids(1, 12), ids(1, 20)) for _ in range(n)]


PAIRS = some_pairs(12)


def recipe(**changes: Any) -> DPORecipe:
    small = {"batch": 12, "micro_batch": 4, "max_length": 48, "steps": 3, "gradient_checkpointing": False, "warmup_steps": 0}
    return complete(DPORecipe, {**small, **changes})


def shared(folder: Path, batch: int = 12) -> dict[str, Any]:
    return {
        "output_dir": str(folder), "seed": 3, "max_steps": 3, "learning_rate": 1e-2, "use_cpu": True, "bf16": False, "report_to": "none",
        "per_device_train_batch_size": batch, "model_init_kwargs": {"dtype": "float32"}, "gradient_checkpointing": False,
        "disable_tqdm": True, "lr_scheduler_type": "constant", "save_strategy": "no", "logging_steps": 1,
    }  # fmt: skip


def ours(
    model: Path, folder: Path, own: DPORecipe, levers: Any = None, pairs: list[Pair] = PAIRS, references: Any = None, **given: Any
) -> Any:
    from transformers import AutoTokenizer

    from trainers.inside.reference import computed
    from trainers.inside.stepwise import Levers, Stepwise, configuration, placeholder

    levers = levers or Levers()
    return Stepwise(
        own, pairs, [1.0] * len(pairs), references or (lambda trainer: computed(trainer, range(len(pairs)))), levers,
        model=str(model), args=configuration(own, shared(folder), levers), train_dataset=placeholder(),
        processing_class=AutoTokenizer.from_pretrained(model), **given,
    )  # fmt: skip


def plain(model: Path, folder: Path, own: DPORecipe) -> Any:
    """The library's trainer as it comes: the whole step in one batch, the start model in memory."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    class Untouched(DPOTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset  # tokens already

    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    config = DPOConfig(
        **shared(folder), loss_type=list(own.losses), loss_weights=list(own.losses.values()), beta=own.beta,
        label_smoothing=own.smoothing, max_length=own.max_length, remove_unused_columns=False,
    )  # fmt: skip
    rows = Dataset.from_list([dict(zip(names, pair, strict=True)) for pair in PAIRS])
    tokenizer = AutoTokenizer.from_pretrained(model)
    return Untouched(model=str(model), args=config, train_dataset=rows, processing_class=tokenizer)


def away_from_start(model: Any) -> None:
    """Moves the trained weights a little, so that no loss sits at its starting point."""
    import torch

    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))


def gradients(model: Any) -> dict[str, Any]:
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def close(one: dict[str, Any], other: dict[str, Any]) -> None:
    import torch

    assert set(one) == set(other)
    assert any(float(value.abs().max()) > 1e-4 for value in other.values()), "there is nothing to compare"
    for name, value in other.items():
        torch.testing.assert_close(one[name], value, rtol=2e-3, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")


def one_step(trainer: Any, inputs: Any) -> tuple[float, dict[str, Any]]:
    away_from_start(trainer.model)
    loss = float(trainer.training_step(trainer.model, inputs))
    return loss, gradients(trainer.model)


MIXES: list[dict[Loss, float]] = [*({loss: 1.0} for loss in get_args(Loss)), {"sigmoid": 1.0, "sft": 0.5}]


@pytest.mark.parametrize("losses", MIXES, ids="+".join)
def test_loss_and_gradients_are_those_of_the_plain_trainer(losses: dict[Loss, float], tiny_model: Path, tmp_path: Path) -> None:
    own = recipe(losses=losses, label_smoothing=0.2, weigh_pairs="robust" not in losses, micro_tokens=150)
    usual = plain(tiny_model, tmp_path, own)
    batch = usual.data_collator([usual.train_dataset[i] for i in range(len(PAIRS))])
    usual.current_gradient_accumulation_steps = 1
    expected, wanted = one_step(usual, batch)
    fast = ours(tiny_model, tmp_path, own)
    assert fast.shares
    assert len(fast.groups(PAIRS)) > 2, "the step must be split, or nothing is shown"
    loss, found = one_step(fast, {"rows": list(range(len(PAIRS)))})
    assert loss == pytest.approx(expected, rel=1e-4)
    close(found, wanted)


def test_each_lever_alone_changes_nothing_but_the_time(tiny_model: Path, tmp_path: Path) -> None:
    from trainers.inside.stepwise import Levers

    none = Levers(*[False] * 4)
    variants = [none, Levers(), none._replace(known_reference=True), none._replace(by_length=True), none._replace(answers_only=True)]
    results = [one_step(ours(tiny_model, tmp_path, recipe(), levers), {"rows": list(range(12))}) for levers in variants]
    for loss, found in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-4)
        close(found, results[0][1])


def test_the_split_does_not_matter(tiny_model: Path, tmp_path: Path) -> None:
    results = [one_step(ours(tiny_model, tmp_path, recipe(micro_tokens=n)), {"rows": list(range(12))}) for n in (1, 100, 10_000)]
    for loss, found in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-4)
        close(found, results[0][1])


def test_the_rejected_answer_does_not_see_the_chosen_one(tiny_model: Path, tmp_path: Path) -> None:
    import torch

    trainer = ours(tiny_model, tmp_path, recipe())
    pair = Pair([5, 6, 7], [8, 9, 10], [11, 12])
    other = pair._replace(chosen=[14, 15, 16])
    with torch.no_grad():
        one, two = (trainer.answers(trainer.model, trainer.layout([p], True)) for p in (pair, other))
    assert one[0, 1] == two[0, 1]
    assert one[0, 0] != two[0, 0]


def test_a_model_that_cannot_share_a_prompt_keeps_separate_rows(tiny_model: Path, tmp_path: Path) -> None:
    """A window over the last tokens would see the chosen answer's length; its kind is known by its name."""
    import json
    import shutil

    folder = shutil.copytree(tiny_model, tmp_path / "windowed")
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8}
    (folder / "config.json").write_text(json.dumps(config))
    assert not ours(folder, tmp_path, recipe()).shares


def test_an_adapter_is_compared_with_the_model_without_it(tiny_model: Path, tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig

    trainer = ours(tiny_model, tmp_path, recipe(), peft_config=LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    before = trainer._known.clone()
    with torch.no_grad():
        for weight in (weight for weight in trainer.model.parameters() if weight.requires_grad):
            weight.add_(0.1)
    again = trainer._references(trainer)
    torch.testing.assert_close(again, before)
    whole = ours(tiny_model, tmp_path, recipe())
    torch.testing.assert_close(whole._known, before, rtol=1e-4, atol=1e-4)


lengths = st.lists(st.integers(1, 900), min_size=1, max_size=40)


@given(lengths, st.integers(1, 4000), st.integers(1, 2), st.integers(1, 5))
def test_a_plan_holds_every_pair_once_and_all_ranks_go_in_step(lengths: list[int], budget: int, rows: int, ranks: int) -> None:
    plans = plan(lengths, budget, rows, ranks)
    assert len(plans) == ranks
    assert len({len(groups) for groups in plans}) == 1
    assert sorted(i for groups in plans for group in groups for i in group) == list(range(len(lengths)))
    for group in (group for groups in plans for group in groups if len(group) > 1):
        assert len(group) * rows * max(lengths[i] for i in group) <= budget


@given(lengths)
def test_no_plan_is_worse_than_the_plain_one(lengths: list[int]) -> None:
    def cost(groups: list[list[int]]) -> int:
        return sum(len(group) * max(lengths[i] for i in group) + OVERHEAD for group in groups)

    four_by_four = [list(range(begin, min(begin + 4, len(lengths)))) for begin in range(0, len(lengths), 4)]
    assert cost(plan(lengths, 4 * 900)[0]) <= cost(four_by_four)
