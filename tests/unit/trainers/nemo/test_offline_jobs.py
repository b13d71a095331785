"""Tests of SFT and DPO as jobs on the stand-in for the release: their rows as tokens, their figures, and what they publish."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.contracts.conversation import stored_answer
from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Adjustment, JobSpec, Method
from ratchet.trainers.backends.nemo.arithmetic import ClusterShape
from ratchet.trainers.backends.nemo.offline import NemoDPO
from ratchet.trainers.backends.nemo.offline_checks import rows_in_memory
from ratchet.trainers.job.nemo import launcher, offline_rows, prepare_offline
from ratchet.trainers.job.trl import sft
from ratchet.trainers.job.trl.sampler import drawn
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.derived import adjusted
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.sft import SFTRecipe
from tests.builders import make_plan
from tests.unit.trainers.conftest import Workshop
from tests.unit.trainers.job.trl.templates import TOOLS, WITH_TOOLS, call

pytestmark = pytest.mark.slow


@pytest.fixture
def workshop(warm_workshop: Workshop) -> Workshop:
    """Return the workshop with jobs that start fast."""
    return warm_workshop


@pytest.fixture
def run(tmp_path: Path, tiny_model: Path) -> tuple[Path, Any]:
    """Return a run folder with rows of several turns, with tool calls, and with one that is too long, and the tokenizer."""
    from transformers import AutoTokenizer

    asked = [
        [{"role": "user", "content": "one two"}],
        [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, {"role": "user", "content": "up three"}],
        [{"role": "user", "content": "four"}, call("five"), {"role": "tool", "tool_call_id": "1", "content": "six"}],
        [{"role": "user", "content": "one two " * 30}],
    ]
    answers = ["yes no yes", "no", stored_answer(call("three")), "yes"]
    shared = {"prompt": [json.dumps(one) for one in asked], "tools": [None, None, TOOLS, None], "weight": [1.0, 0.5, 0.25, 1.0]}
    pq.write_table(pa.table({**shared, "answer": answers}), tmp_path / "demonstrations.parquet")
    pairs = {**shared, "chosen": answers, "rejected": ["left", "right left", "up", "no"]}
    pq.write_table(pa.table(pairs), tmp_path / "pairs.parquet")
    (tmp_path / "model").symlink_to(tiny_model)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = WITH_TOOLS
    return tmp_path, tokenizer


def logged(row: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
    """Return the tokens of a message log, and the loss mask that the release gives it: 1 for the answer."""
    tokens = [token for message in row for token in message["token_ids"].tolist()]
    return tokens, [int(message["role"] == "assistant") for message in row for _ in message["token_ids"]]


def test_the_release_gets_the_tokens_masks_and_order_of_the_trl_job(run: tuple[Path, Any], stub_path: Path) -> None:
    folder, tokenizer = run
    recipe = complete(SFTRecipe, {"steps": 5, "batch": 4, "max_length": 40})
    found = offline_rows.read(folder, tokenizer, recipe)
    written = offline_rows.write(folder / "data", found, recipe, seed=3)
    from ratchet.trainers.job.nemo import offline_dataset

    data = offline_dataset.Run(data_path=str(written), processor="ratchet_answers").dataset
    given = [offline_dataset.answer(data[i], None, tokenizer, 4, i, add_bos=False)["message_log"] for i in range(len(data))]
    on_trl, left = sft.dataset_of(tokenizer, sft.rows(folder, recipe), 40)
    order = list(drawn([row["weight"] for row in on_trl], 20, 3))
    assert [logged(row) for row in given] == [(on_trl[i]["input_ids"], on_trl[i]["completion_mask"]) for i in order]
    assert found.left_out == left
    assert left.kept == len(on_trl) == 3
    assert "left" in tokenizer.decode(on_trl[2]["input_ids"]), "the tool call is rendered"


def test_only_the_rows_that_a_run_draws_are_written(run: tuple[Path, Any]) -> None:
    folder, tokenizer = run
    recipe = complete(SFTRecipe, {"steps": 1, "batch": 2, "micro_batch": 2, "max_length": 40})
    found = offline_rows.read(folder, tokenizer, recipe)
    written = offline_rows.write(folder / "data", found, recipe, seed=3)
    order = list(drawn(found.weights, 2, 3))
    assert len(set(order)) < len(found.tokens)
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    assert len(rows) == len(set(order))
    numbers = json.loads((folder / "data" / offline_rows.ORDER).read_text())
    assert [rows[number]["chosen"] for number in numbers] == [found.tokens[number].chosen for number in order]


@pytest.mark.parametrize(("gpus", "rows"), [(1, 2), (8, 2), (16, 1), (32, None)])
def test_after_an_out_of_memory_error_half_of_the_rows_that_ran_are_in_memory(gpus: int, rows: int | None) -> None:
    """With the batch of 32 pairs, 16 GPUs had two rows each and 32 had one, whatever `micro_batch` is."""
    plan = make_plan(Method.DPO, NemoDPO().recipe({"steps": 9, "batch": 32, "micro_batch": 4}))
    adjustment, cluster = Adjustment(memory=0.5), ClusterShape(gpus // 8 or 1, min(gpus, 8))
    job: Any = SimpleNamespace(plan=plan, adjustment=adjustment)
    recipe = adjusted(complete(DPORecipe, plan.recipe), adjustment)
    if rows is None:
        with pytest.raises(Permanent, match=r"does not suffice for a single row; raise nemo\.tensor_parallel"):
            prepare_offline._with_less_memory(job, recipe, cluster)
    else:
        assert rows_in_memory(prepare_offline._with_less_memory(job, recipe, cluster), cluster) == rows


def test_pairs_are_two_logs_with_the_same_prompt(run: tuple[Path, Any], stub_path: Path) -> None:
    folder, tokenizer = run
    recipe = complete(DPORecipe, {"steps": 2, "batch": 4, "max_length": 40, "rehearsal": 0.0})
    found = offline_rows.read(folder, tokenizer, recipe)
    written = offline_rows.write(folder / "data", found, recipe, seed=3)
    from ratchet.trainers.job.nemo import offline_dataset

    data = offline_dataset.Run(data_path=str(written)).dataset
    assert len(data) == 8
    for i in range(len(data)):
        row = offline_dataset.pair(data[i], None, tokenizer, 4, i)
        chosen, rejected = row["message_log_chosen"], row["message_log_rejected"]
        assert chosen[0]["token_ids"].tolist() == rejected[0]["token_ids"].tolist()
        assert (row["length_chosen"], row["length_rejected"]) == (len(logged(chosen)[0]), len(logged(rejected)[0]))
        assert chosen[1]["token_ids"].tolist() != rejected[1]["token_ids"].tolist()


@pytest.mark.parametrize("method", [Method.SFT, Method.DPO])
def test_a_run_is_observed_saved_and_published(workshop: Any, offline_job: Callable[..., JobSpec], method: Method) -> None:
    spec = offline_job(method)
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.DONE, (status, workshop.log(spec))
    assert status.reason == "4 steps"
    events = workshop.executor.events(spec.name)
    progress = [event for event in events if event.kind == "progress"]
    assert [event.step for event in progress] == [1, 2, 3, 4]
    shared = {"loss": 0.5, "grad_norm": 1.0, "learning_rate": 1e-3, "step_seconds": 0.2, "training_tokens_per_second_per_gpu": 9.0}
    gains = {"pairs_in_order": 0.75, "chosen_reward": 0.05, "margin": 0.2, "chosen_fall": -0.5}
    assert progress[0].data == pytest.approx(shared | (gains if method is Method.DPO else {}))
    assert [event.step for event in events if event.kind == "checkpoint"] == [2, 4]
    assert workshop.artifacts.resolve(f"checkpoint/{spec.plan}/a1/i1")


def test_an_incomplete_last_step_is_not_published(workshop: Any, offline_job: Callable[..., JobSpec]) -> None:
    spec = offline_job(Method.SFT, stub="cut")
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.FAILED
    assert "(truncated)" in status.reason


def test_a_release_that_would_render_pairs_itself_is_refused(stub_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_rl.data import utils

    monkeypatch.delattr(utils, "preference_preprocessor")
    with pytest.raises(AttributeError, match="would train on other tokens"):
        launcher.register("dpo")
