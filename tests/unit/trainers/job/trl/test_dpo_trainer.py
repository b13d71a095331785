"""Tests that the fast step equals the library's step: the same loss and gradients, for every loss and every layout of a step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.trainers.job.trl.micro_batches import OVERHEAD, PairSize, plan_micro_batches
from ratchet.trainers.recipes.dpo import DPORecipe, Loss
from tests.unit.trainers.dpo_trainers import PAIRS, SHOWN, ours, recipe, rehearsing, shared

pytestmark = pytest.mark.slow  # TRL takes seconds to load


def plain(model: Path, folder: Path, own: DPORecipe) -> Any:
    """Return the library's unchanged trainer: one batch is one step, and the start model is in memory."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    class Untouched(DPOTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset  # the rows are tokenized already

    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    config = DPOConfig(
        **shared(folder), loss_type=list(own.losses), loss_weights=list(own.losses.values()), beta=own.beta,
        label_smoothing=own.smoothing, max_length=own.max_length, remove_unused_columns=False,
    )  # fmt: skip
    rows = Dataset.from_list([dict(zip(names, pair, strict=True)) for pair in PAIRS])
    tokenizer = AutoTokenizer.from_pretrained(model)
    return Untouched(model=str(model), args=config, train_dataset=rows, processing_class=tokenizer)


def away_from_start(model: Any) -> None:
    """Change the trained weights slightly, so that no loss has its initial value."""
    import torch

    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))


def gradients(model: Any) -> dict[str, Any]:
    """Return copies of all gradients by name."""
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def close(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Assert that both sets of gradients are nearly equal."""
    import torch

    assert set(one) == set(other)
    assert any(float(value.abs().max()) > 1e-4 for value in other.values()), "the gradients must not be zero"
    for name, value in other.items():
        torch.testing.assert_close(one[name], value, rtol=2e-3, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")


def one_step(trainer: Any, inputs: Any) -> tuple[float, dict[str, Any]]:
    """Return the loss and the gradients of one training step."""
    away_from_start(trainer.model)
    loss = float(trainer.training_step(trainer.model, inputs))
    return loss, gradients(trainer.model)


MIXES: list[dict[Loss, float]] = [*({loss: 1.0} for loss in get_args(Loss)), {"sigmoid": 1.0, "sft": 0.5}]


@pytest.mark.parametrize("losses", MIXES, ids="+".join)
def test_loss_and_gradients_equal_those_of_the_library(losses: dict[Loss, float], tiny_model: Path, tmp_path: Path) -> None:
    own = recipe(losses=losses, label_smoothing=0.2, weigh_pairs="robust" not in losses, micro_tokens=150)
    usual = plain(tiny_model, tmp_path, own)
    batch = usual.data_collator([usual.train_dataset[i] for i in range(len(PAIRS))])
    usual.current_gradient_accumulation_steps = 1
    expected, wanted = one_step(usual, batch)
    fast = ours(tiny_model, tmp_path, own)
    assert fast.shares
    assert len(fast.groups(PAIRS)) > 2, "the step must be split, otherwise the test is meaningless"
    loss, found = one_step(fast, {"rows": list(range(len(PAIRS)))})
    assert loss == pytest.approx(expected, rel=1e-4)
    close(found, wanted)


def by_hand(model: Any, start: Any) -> Any:
    """Return the expected loss: the mean DPO loss of the pairs plus half of the mean loss per token of all correct answers."""
    import torch

    def said(which: Any, prompt: list[int], answer: list[int]) -> Any:
        logits = which(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        return logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).sum()

    def gain(prompt: list[int], answer: list[int]) -> Any:
        with torch.no_grad():
            before = said(start, prompt, answer)
        return said(model, prompt, answer) - before

    preference = [-torch.nn.functional.logsigmoid(0.1 * (gain(p.prompt, p.chosen) - gain(p.prompt, p.rejected))) for p in PAIRS]
    right = [(pair.prompt, pair.chosen) for pair in [*PAIRS, *SHOWN]]
    return sum(preference) / len(PAIRS) - 0.5 * sum(said(model, *one) for one in right) / sum(len(answer) for _, answer in right)


@pytest.mark.parametrize("shared_prompt", [True, False])
def test_demonstrations_contribute_only_to_the_sft_loss(shared_prompt: bool, tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from ratchet.trainers.job.trl.dpo_trainer import Optimizations

    model, start = (AutoModelForCausalLM.from_pretrained(tiny_model) for _ in range(2))
    away_from_start(model)
    expected = by_hand(model, start)
    expected.backward()
    own = recipe(losses={"sigmoid": 1.0, "sft": 0.5}, micro_tokens=150)
    trainer = ours(tiny_model, tmp_path, own, Optimizations(shared_prompt=shared_prompt), rehearsal=rehearsing())
    assert trainer.shares == shared_prompt
    loss, found = one_step(trainer, {"rows": list(range(17))})
    assert loss == pytest.approx(float(expected), rel=1e-4)
    close(found, gradients(model))
    figures = trainer._figures
    usual = ours(tiny_model, tmp_path, own)
    one_step(usual, {"rows": list(range(12))})
    assert (figures.pop("rehearsal/rows"), figures.pop("rehearsal/logps") < 0) == (5, True)
    assert figures == pytest.approx(usual._figures, rel=1e-3, abs=1e-5), "these metrics must come from pairs only"


def test_without_rehearsal_nothing_changes(tiny_model: Path, tmp_path: Path) -> None:
    usual, none = ours(tiny_model, tmp_path, recipe()), ours(tiny_model, tmp_path, recipe(), rehearsal=rehearsing(0))
    more = ours(tiny_model, tmp_path, recipe(), rehearsal=rehearsing(2))
    assert none.rows_in_order() == usual.rows_in_order() == usual.order()
    rows = more.rows_in_order()
    steps = [rows[at : at + 14] for at in range(0, len(rows), 14)]
    assert [row for step in steps for row in step[:12]] == usual.order(), "every step must have the same pairs"
    assert {row for step in steps for row in step[12:]} == set(range(12, 17))
    assert one_step(none, {"rows": list(range(12))})[0] == one_step(usual, {"rows": list(range(12))})[0]


def test_few_demonstrations_are_spread_over_the_run(tiny_model: Path, tmp_path: Path) -> None:
    trainer = ours(tiny_model, tmp_path, recipe(steps=8), rehearsal=rehearsing(0.5))
    steps = [batch["rows"] for batch in trainer.get_train_dataloader()]
    assert [sum(number >= len(trainer.pairs) for number in rows) for rows in steps] == [0, 1] * 4
    assert [number for rows in steps for number in rows if number < len(trainer.pairs)] == trainer.order()


def test_a_run_with_rehearsal_resumes_to_the_same_weights(tiny_model: Path, tmp_path: Path) -> None:
    def trained(resume: str | None) -> list[Any]:
        own = recipe()
        trainer = ours(tiny_model, tmp_path, own, rehearsal=rehearsing(2), given={"save_strategy": "steps", "save_steps": 1})
        trainer.train(resume_from_checkpoint=resume)
        assert trainer.state.global_step == own.steps
        return [weight.detach().clone() for weight in trainer.model.parameters()]

    whole, resumed = trained(None), trained(str(tmp_path / "checkpoint-1"))
    assert all(one.equal(other) for one, other in zip(whole, resumed, strict=True))


def test_with_rehearsal_prompts_without_pairs_are_not_forgotten(tiny_model: Path, tmp_path: Path) -> None:
    """Pairs teach the answer `no` to one kind of question.

    The other kind is always answered `yes`. It has no pairs, and most of its words are the same.
    """
    yes, no, up = [13, 1], [14, 1], [15, 1]
    pairs = [PairSize([2, 5, word, 4], no, up) for word in range(7, 13)] * 2
    shown = [PairSize([2, 6, word, 4], yes, []) for word in range(7, 13)]

    def certainty(losses: dict[Loss, float], steps: int, pairs: list[PairSize], rows: int, model: Path) -> tuple[Any, float]:
        own = recipe(losses=losses, steps=steps)
        trainer = ours(model, tmp_path, own, pairs=pairs, rehearsal=rehearsing(rows, shown), given={"max_steps": steps})
        trainer.train()
        return trainer, min(float(sums) for sums in trainer.answers(trainer.model, trainer.layout(shown, trainer.shares))[:, 0])

    learnt, before = certainty({"sft": 1.0}, 20, [PairSize(one.prompt, one.chosen, up) for one in shown] * 2, 0, tiny_model)
    for file in tiny_model.iterdir():
        (tmp_path / "base").mkdir(exist_ok=True)
        (tmp_path / "base" / file.name).write_bytes(file.read_bytes())
    learnt.model.save_pretrained(tmp_path / "base")
    losses: dict[Loss, float] = {"sigmoid": 0.2, "sft": 1.0}
    forgotten, kept = (certainty(losses, 20, pairs, rows, tmp_path / "base")[1] for rows in (0, 6))
    assert before > -0.1
    assert forgotten < -1, "without rehearsal, the model must forget the answers"
    assert kept > -0.1


def test_rehearsed_prompts_have_no_pairs_and_excluded_rows_are_counted(tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from ratchet.trainers.job.trl import dpo

    def asked(words: str) -> str:
        return json.dumps([{"role": "user", "content": words}])

    rows = [("one", "yes", 1.0), ("one", "up", 0.5), ("two", "no", 1.0), ("three", "yes <end>", 1.0), ("four " * 60, "no", 1.0)]
    prompts, answers, weights = zip(*rows, ("six", "no", 0.0), strict=True)
    columns = {"prompt": [asked(words) for words in prompts], "answer": answers, "weight": weights}
    pq.write_table(pa.table(columns), tmp_path / "demonstrations.parquet")
    told: list[str] = []
    job: Any = SimpleNamespace(run=tmp_path, events=SimpleNamespace(write=lambda _kind, reason: told.append(reason)))
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    paired = [json.dumps([json.loads(asked(words)), None], sort_keys=True) for words in ("two", "five", "seven")]
    found = dpo.rehearsal(job, tokenizer, recipe(), set(paired))
    assert [(len(pair.rejected), weight) for pair, weight in zip(found.shown, found.weights, strict=True)] == [(0, 0.5), (0, 0.25)]
    assert [tokenizer.decode(pair.chosen) for pair in found.shown] == ["yes <end>", "up <end>"]
    assert found.rows == 4, "12 pairs of three prompts in a step allow four rows of the only other prompt"
    assert told == [
        "of 4 demonstrations of prompts without a pair, excluded: 1 with answers that contain special tokens of the model, "
        "1 with prompts longer than 48 tokens, by max_length or the model's context"
    ]
    assert dpo.rehearsal(job, tokenizer, recipe(rehearsal=0.25), set(paired)).rows == 3
    many = {*paired, *(f"question {number}" for number in range(117))}
    assert dpo.rehearsal(job, tokenizer, recipe(), many).rows == pytest.approx(12 / 120), "one row in ten steps"
    refusing = "{% if 'one' in messages[0].content %}{{ raise_exception('not one') }}{% endif %}"
    tokenizer.chat_template = refusing + tokenizer.chat_template
    assert dpo.rehearsal(job, tokenizer, recipe(), set(paired)).shown == []
    assert "2 that the chat template refuses" in told[-1], "rows that cannot be rendered must be counted and must not end the run"
    (tmp_path / "demonstrations.parquet").unlink()
    assert dpo.rehearsal(job, tokenizer, recipe(rehearsal=0), set(paired)).rows == 0


def test_each_optimisation_alone_changes_only_the_speed(tiny_model: Path, tmp_path: Path) -> None:
    from ratchet.trainers.job.trl.dpo_trainer import Optimizations

    none = Optimizations(*[False] * 4)
    variants = [none, Optimizations(), none._replace(known_reference=True), none._replace(by_length=True), none._replace(answers_only=True)]
    results = [one_step(ours(tiny_model, tmp_path, recipe(), optimizations), {"rows": list(range(12))}) for optimizations in variants]
    for loss, found in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-4)
        close(found, results[0][1])


def test_the_split_into_micro_batches_does_not_matter(tiny_model: Path, tmp_path: Path) -> None:
    results = [one_step(ours(tiny_model, tmp_path, recipe(micro_tokens=n)), {"rows": list(range(12))}) for n in (1, 100, 10_000)]
    for loss, found in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-4)
        close(found, results[0][1])


def test_the_rejected_answer_does_not_see_the_chosen_one(tiny_model: Path, tmp_path: Path) -> None:
    import torch

    trainer = ours(tiny_model, tmp_path, recipe())
    pair = PairSize([5, 6, 7], [8, 9, 10], [11, 12])
    other = pair._replace(chosen=[14, 15, 16])
    with torch.no_grad():
        one, two = (trainer.answers(trainer.model, trainer.layout([p], True)) for p in (pair, other))
    assert one[0, 1] == two[0, 1]
    assert one[0, 0] != two[0, 0]


def test_a_model_that_cannot_share_a_prompt_keeps_separate_rows(tiny_model: Path, tmp_path: Path) -> None:
    """With a sliding window, the rejected answer would depend on the length of the chosen one.

    The trainer knows such models by their type.
    """
    import json
    import shutil

    folder = shutil.copytree(tiny_model, tmp_path / "windowed")
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8}
    (folder / "config.json").write_text(json.dumps(config))
    assert not ours(folder, tmp_path, recipe()).shares


def test_a_start_model_that_fails_to_open_leaves_the_trainer_as_it_was(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    trainer = ours(tiny_model, tmp_path, recipe())
    trainer.model.gradient_checkpointing_enable()

    @contextmanager
    def broken() -> Iterator[None]:
        raise OSError("no device")
        yield

    monkeypatch.setattr(trainer.accelerator, "autocast", broken)
    with pytest.raises(OSError, match="no device"), trainer.start_model():
        pass
    assert torch.is_grad_enabled()
    assert trainer.model.is_gradient_checkpointing


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
def test_a_plan_has_every_pair_once_and_the_same_number_of_groups_per_rank(lengths: list[int], budget: int, rows: int, ranks: int) -> None:
    plans = plan_micro_batches(lengths, budget, rows, ranks)
    assert len(plans) == ranks
    assert len({len(groups) for groups in plans}) == 1
    assert sorted(i for groups in plans for group in groups for i in group) == list(range(len(lengths)))
    for group in (group for groups in plans for group in groups if len(group) > 1):
        assert len(group) * rows * max(lengths[i] for i in group) <= budget


@given(lengths)
def test_no_plan_is_worse_than_groups_of_four(lengths: list[int]) -> None:
    def cost(groups: list[list[int]]) -> int:
        return sum(len(group) * max(lengths[i] for i in group) + OVERHEAD for group in groups)

    four_by_four = [list(range(begin, min(begin + 4, len(lengths)))) for begin in range(0, len(lengths), 4)]
    assert cost(plan_micro_batches(lengths, 4 * 900)[0]) <= cost(four_by_four)
