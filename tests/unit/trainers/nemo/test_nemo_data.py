"""Tests of the prompts for the release, of reading its metrics, and of finding the release in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.training import Method
from ratchet.trainers.job.events import Events
from ratchet.trainers.job.job_folder import Job
from ratchet.trainers.job.left_out import UNRENDERED
from ratchet.trainers.job.nemo import data, prepare, release
from ratchet.trainers.job.nemo.figures import Reader
from ratchet.trainers.recipes.grpo import GRPORecipe

pytestmark = pytest.mark.slow  # torch takes seconds to load


def row(number: int) -> dict[str, Any]:
    """Return a prompt of this number and length."""
    return {"prompt_id": f"p{number}", "prompt": [{"role": "user", "content": "x" * number}], "reference": "yes"}


@given(st.integers(1, 60), st.integers(0, 80), st.integers(0, 99))
def test_the_split_is_complete_disjoint_and_repeatable(n: int, wanted: int, seed: int) -> None:
    rows = [row(number) for number in range(n)]
    train, validation = data.split(rows, wanted, seed)
    assert data.split(list(reversed(rows)), wanted, seed)[1] == list(reversed(validation))
    ids = [one["prompt_id"] for one in [*train, *validation]]
    assert sorted(ids) == sorted(one["prompt_id"] for one in rows)
    assert len(validation) == min(wanted, n // 10)


def test_an_additional_prompt_moves_few_of_the_others() -> None:
    first = {one["prompt_id"] for one in data.split([row(n) for n in range(100)], 10, 5)[1]}
    second = {one["prompt_id"] for one in data.split([row(n) for n in range(101)], 10, 5)[1]}
    assert len(first & second) >= 9


def test_rows_come_from_the_frozen_prompts(tmp_path: Path) -> None:
    talk = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "ä"}]
    columns = {"prompt_id": ["b", "a", "c"], "prompt": [json.dumps(talk)] * 3, "reference": ["yes", "no", None]}
    pq.write_table(pa.table(columns), tmp_path / "prompts.parquet")
    rows = data.rows(tmp_path / "prompts.parquet")
    assert [(one["prompt_id"], one["prompt"], one["reference"]) for one in rows] == [("a", talk, "no"), ("b", talk, "yes")]
    counts = data.write(tmp_path / "data", rows, [])
    assert (counts.train, counts.validation) == (2, 0)
    assert json.loads((tmp_path / "data" / "train.jsonl").read_text().splitlines()[0])["prompt"] == talk


def test_prompts_that_do_not_fit_are_left_out_one_by_one() -> None:
    rows = [row(number) for number in range(1, 6)]
    kept, left = data.short(rows, lambda messages: len(messages[0]["content"]), 3)
    assert (len(kept), left.rows, left.reasons) == (3, 5, {"longer than nemo.max_prompt = 3 tokens": 2})
    kept, left = data.short(rows, lambda messages: None if len(messages[0]["content"]) == 1 else 1, 3)
    assert (len(kept), left.reasons) == (4, {UNRENDERED: 1}), "a prompt that the template refuses is left out alone"


def test_a_conversation_becomes_one_user_message(stub_path: Path, tiny_model: Path) -> None:
    from transformers import AutoTokenizer

    from ratchet.trainers.job.nemo.dataset import process

    talk = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]
    datum = {"prompt": json.dumps(talk), "prompt_id": "p", "reference": "yes", "task_name": "ratchet"}
    found = process(datum, None, AutoTokenizer.from_pretrained(tiny_model), 32, 7)
    assert [message["role"] for message in found["message_log"]] == ["user"]
    assert found["message_log"][0]["content"].split() == ["<user>", "one", "<assistant>", "two", "<end><user>", "three", "<assistant>"]
    assert found["length"] == len(found["message_log"][0]["token_ids"]) == 8
    assert found["extra_env_info"] == {"prompt_id": "p", "prompt": talk, "reference": "yes"}
    assert process(datum, None, AutoTokenizer.from_pretrained(tiny_model), 7, 7)["loss_multiplier"] == 0.0


def test_metrics_are_read_as_they_arrive_and_an_incomplete_line_waits(tmp_path: Path) -> None:
    figures, journal = tmp_path / "figures.jsonl", tmp_path / "journal.jsonl"
    reader = Reader(figures, journal)
    assert list(reader.steps()) == []
    lines = [
        {"step": 1, "prefix": "train", "figures": {"mean_gen_tokens_per_sample": 5.0, "total_turns": 3.0}},
        {"step": 1, "prefix": "train", "figures": {"loss": 0.5, "kl_penalty": 0.01, "reward": 0.25}},
        {"step": 1, "prefix": "timing/train", "figures": {"generation": 3.0, "total_step_time": 9.0}},
    ]
    journal.write_text('{"answers": 6, "abstained": 3}\n{"answers": 2, "abstained": 0}\n')
    text = "".join(json.dumps(line) + "\n" for line in lines)
    figures.write_text(text[:-10])
    assert list(reader.steps()) == []
    figures.write_text(text)
    own = {
        "answer_tokens": 5.0,
        "loss": 0.5,
        "kl": 0.01,
        "reward": 0.25,
        "generation_seconds": 3.0,
        "step_seconds": 9.0,
        "abstained": 0.375,
    }
    assert list(reader.steps()) == [(1, own)]
    assert list(reader.steps()) == []


def test_throughput_and_the_time_of_each_phase_are_kept(tmp_path: Path) -> None:
    figures, journal = tmp_path / "figures.jsonl", tmp_path / "journal.jsonl"
    journal.write_text('{"answers": 6, "abstained": 0, "seconds": 1.5}\n{"answers": 2, "abstained": 0, "seconds": 0.5}\n')
    speed = {"tokens_per_sec_per_gpu": 900.0, "generation_tokens_per_sec_per_gpu": 2000.0, "samples_per_sec": 3.0}
    times = {"policy_and_reference_logprobs": 2.0, "prepare_for_generation/total": 1.0, "total_step_time": 9.0}
    lines = [
        {"step": 1, "prefix": "performance", "figures": {**speed, "train_flops_per_gpu": 40.0, "train_fp_utilization": 0.04}},
        {"step": 1, "prefix": "timing/train", "figures": times},
    ]
    figures.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ((_, found),) = Reader(figures, journal).steps()
    assert found == {
        "tokens_per_second_per_gpu": 900.0,
        "generation_tokens_per_second_per_gpu": 2000.0,
        "training_tflops_per_gpu": 40.0,
        "training_flops_utilization": 0.04,
        "logprobs_seconds": 2.0,
        "weight_transfer_seconds": 1.0,
        "step_seconds": 9.0,
        "abstained": 0.0,
        "reward_seconds": 2.0,
    }


def test_the_validation_before_the_first_step_is_not_a_figure_of_that_step(tmp_path: Path) -> None:
    figures = tmp_path / "figures.jsonl"
    lines = [
        {"step": step, "prefix": prefix, "figures": {"accuracy": score, "total_step_time": 1.0}}
        for step, prefix, score in ((4, "validation", 0.5), (5, "timing/train", 0), (6, "validation", 0.75), (6, "timing/train", 0))
    ]
    figures.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = dict(Reader(figures, tmp_path / "journal.jsonl").steps())
    assert found == {5: {"step_seconds": 1.0}, 6: {"step_seconds": 1.0, "validation_reward": 0.75}}


def test_the_tokens_of_judges_are_a_figure_of_the_step_whose_answers_they_graded(tmp_path: Path) -> None:
    figures, journal = tmp_path / "figures.jsonl", tmp_path / "journal.jsonl"
    figures.touch()
    reader = Reader(figures, journal)
    found = []
    for step, batches in ((1, (100, 20)), (2, (7,)), (3, ())):
        with journal.open("a") as file:
            file.writelines(json.dumps({"answers": 2, "abstained": 0, "judge_tokens": tokens}) + "\n" for tokens in batches)
        with figures.open("a") as file:
            file.write(json.dumps({"step": step, "prefix": "timing/train", "figures": {}}) + "\n")
        if step == 2:  # a batch that could not be scored
            with journal.open("a") as file:
                file.write('{"judge_tokens": 3}\n')
        found += [told.get("judge_tokens") for _, told in reader.steps()]
    assert found == [120.0, 10.0, None]


def test_a_line_that_a_kill_truncated_loses_only_its_own_metrics(tmp_path: Path) -> None:
    figures, journal = tmp_path / "figures.jsonl", tmp_path / "journal.jsonl"
    whole = [json.dumps({"step": n, "prefix": "timing/train", "figures": {"total_step_time": n}}) for n in (1, 2, 3)]
    figures.write_text(f"{whole[0]}\n{whole[0][:20]}{whole[1]}\n[1]\n7\n\n{whole[2]}\n")
    journal.write_text('{"answers": 6, "abst{"answers": 2, "abstained": 1}\n{"answers": 4, "abstained": 1}\n')
    assert list(Reader(figures, journal).steps()) == [(1, {"step_seconds": 1.0, "abstained": 0.25}), (3, {"step_seconds": 3.0})]


@pytest.mark.parametrize("first", [b"", b'{"at": 12.5, "incar', b'{"at": 12.5, "incar\n\xff\n'])
def test_the_time_left_counts_from_the_first_readable_event(
    first: bytes, workshop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first incarnation was killed before it had written a complete line."""
    for number in (1, 2):
        (tmp_path / "run" / f"i{number}").mkdir(parents=True)
    (tmp_path / "run" / "i1" / "events.jsonl").write_bytes(first)
    diary = Events(tmp_path / "run" / "i2" / "events.jsonl", 2, 9)
    job = Job(tmp_path / "run", workshop.plan(Method.GRPO, steps=9), 1, 2, 1, diary)
    recipe = job.recipe(GRPORecipe)
    assert prepare.time_left(job, recipe) is None
    monkeypatch.setenv("RATCHET_TIMEOUT", "1000")
    monkeypatch.setattr("time.time", lambda: 5000.0)
    diary.write("started")
    monkeypatch.setattr("time.time", lambda: 5300.0)
    assert prepare.time_left(job, recipe) == 700 - recipe.grace_seconds


def test_a_release_is_identified_by_its_base_file(release_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_NEMO_RL", str(release_folder))
    assert (release.find().dialect, release.find().keeps_reference) == ("0.7", False)
    (release_folder / "child.yaml").write_text(
        "defaults: examples/configs/grpo_math_1B.yaml\npolicy: {extra: 1}\ndata: {_override_: true, own: 2}\n"
    )
    merged = release.read(release_folder / "child.yaml")
    assert merged["policy"]["extra"] == 1
    assert "dtensor_cfg" in merged["policy"]
    assert merged["data"] == {"own": 2}
    base = release_folder / release.BASE
    base.write_text("policy: {automodel_cfg: {enabled: true}}\n")
    worker = release_folder / release.WORKER
    worker.parent.mkdir(parents=True)
    worker.write_text("if defer_checkpoint_load: ...\n")
    assert (release.find().dialect, release.find().keeps_reference) == ("0.8", True)
    base.write_text("policy: {}\n")
    with pytest.raises(Permanent, match="use the pinned release"):
        release.find()
