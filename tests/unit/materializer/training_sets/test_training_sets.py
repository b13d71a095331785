"""Tests of labels, pairs, probes and dataset facts on small datasets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import MOST_SLICES, ScorerVersion
from ratchet.contracts.data.records import PROMPTS, SAMPLES, Tier
from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.evaluation import ChatAnswer, ChatRequest
from ratchet.contracts.loop import SnapshotSettings
from ratchet.contracts.ports import Progress
from ratchet.contracts.ports.data import ProbedChampion
from ratchet.materializer.lake.schemas import frame_of
from ratchet.materializer.training_sets.facts import off_policy, slices_of
from ratchet.materializer.training_sets.pairs import Pairs, make_pairs
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import T0, batch, evaluation, log, logs, span, spans
from tests.unit.materializer.small_datasets import LATER, TRAIN, VERSIONS, assembled, frozen, rows


@pytest.mark.slow
def test_correction_is_a_reference_and_the_chosen_answer_of_a_pair(tmp_path: Path) -> None:
    wrong = span(1, TRAIN[0], "A: 3", [evaluation("user_correction", text="1 + 1 = 2\nA: 2")])
    datasets = make_datasets(tmp_path)
    training, pairs = assembled(datasets, wrong, span(2, TRAIN[0], "A: 2"))
    assert {(pair["chosen"], pair["rejected"], pair["tier"], pair["weight"]) for pair in pairs} == {
        ("1 + 1 = 2\nA: 2", "A: 3", "verifiable", 1.0),
        ("A: 2", "A: 3", "verifiable", 1.0),
    }
    assert training.facts.corrections == 1
    assert training.slices == {"pairs": ("",), "prompts": ("",), "demonstrations": ("",)}
    prompts = rows(datasets, training.prompts)
    assert [(row["reference"], row["reference_kind"]) for row in prompts] == [("1 + 1 = 2\nA: 2", "correction")]


def test_the_slices_of_an_artifact_are_named_unless_there_are_too_many() -> None:
    few = pl.DataFrame({"slice": ["a", None, "b", "a"]})
    many = pl.DataFrame({"slice": [str(n) for n in range(MOST_SLICES + 1)]})
    none = few.clear()
    assert slices_of({"pairs": few, "prompts": many, "demonstrations": none}) == {
        "pairs": ("", "a", "b"),
        "demonstrations": (),
    }


@pytest.mark.slow
def test_correction_that_contradicts_a_better_reference_is_dropped(tmp_path: Path) -> None:
    confused = span(1, TRAIN[0], "A: 2", [evaluation("user_correction", text="A: 5")], metadata__reference="2")
    datasets = make_datasets(tmp_path)
    training, pairs = assembled(datasets, confused)
    assert (pairs, training.facts.corrections) == ([], 0)


@pytest.mark.slow
def test_correction_gives_a_pair_if_user_feedback_is_the_only_scorer(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(rewards=[{"name": "user_feedback"}]))
    _, pairs = assembled(datasets, span(1, TRAIN[0], "no", [evaluation("user_correction", text="yes")]))
    assert [(pair["chosen"], pair["rejected"], pair["tier"]) for pair in pairs] == [("yes", "no", "verifiable")]


@pytest.mark.slow
def test_latest_rating_of_a_rater_counts_and_early_feedback_is_matched(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(rewards=[{"name": "user_feedback"}]))
    second = T0 + 10**9
    datasets.ingest(
        batch(
            logs(
                log(1, evaluation("user_feedback", 0, at=second, user__id="a")),
                log(1, evaluation("user_feedback", 1, at=T0, user__id="a")),
                log(1, evaluation("user_feedback", 1, user__id="b")),
                evaluation("user_feedback", 1, gen_ai__response__id="r-2") | {"eventName": "gen_ai.evaluation.result"},
            )
        )
    )
    snapshot = frozen(datasets, span(1, TRAIN[0], "x"), span(2, TRAIN[1], "y"))
    samples = {row["answer"]: (row["reward"], row["votes"], row["tier"]) for row in rows(datasets, snapshot.samples)}
    assert samples == {"x": (0.5, 2, "feedback"), "y": (1.0, 1, "feedback")}


@pytest.mark.slow
def test_feedback_after_the_freeze_changes_only_the_next_snapshot(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(rewards=[{"name": "user_feedback"}]))
    first = frozen(datasets, span(1, TRAIN[0], "x"))
    as_of = datasets.clock.now()
    datasets.ingest(batch(logs(log(1, evaluation("user_feedback", 1)))))
    assert datasets.freeze("s", LATER, datasets.edition(1)) == first
    assert datasets.freeze("past", as_of, datasets.edition(1)).content == first.content
    now = datasets.freeze("now", LATER, datasets.edition(1))
    assert now.content != first.content
    assert rows(datasets, now.samples)[0]["reward"] == 1.0


@pytest.mark.slow
def test_equal_records_give_equal_content(tmp_path: Path) -> None:
    items = [span(n, TRAIN[n % 3], f"A: {n % 4}", metadata__reference="1", at=T0 + n) for n in range(1, 20)]
    one, other = make_datasets(tmp_path / "one"), make_datasets(tmp_path / "other")
    first = frozen(one, *items)
    for item in reversed(items):
        other.ingest(batch(spans(item)))
    second = frozen(other, *items)
    assert first.content == second.content
    assert one.assemble("t", first, None).content == other.assemble("t", second, None).content


class Client:
    """Answers with the given texts in turn. None stands for an error."""

    def __init__(self, texts: Sequence[str | None]) -> None:
        self.texts = texts
        self.asked: list[ChatRequest] = []

    def chat(self, requests: Sequence[ChatRequest], progress: Progress | None = None) -> list[ChatAnswer]:
        self.asked += requests
        texts = [self.texts[index % len(self.texts)] for index in range(len(requests))]
        return [ChatAnswer(text=text, error=None if text else "down") for text in texts]


@pytest.mark.slow
def test_probe_measures_group_coverage(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(probe={"samples": 2}))
    snapshot = frozen(datasets, *(span(n, text, "A: 0", metadata__reference="1") for n, text in enumerate(TRAIN[:4], 1)), span(8, TRAIN[5]))
    client = Client(["A: 1", "A: 0", None, "A: 0", "A: 0", "A: 0"])
    report = datasets.probe("p", snapshot, client, lambda *_: None)
    assert (report.prompts, report.answered, report.scored, report.failures) == (4, 7, 7, 1)
    assert report.group_coverage == pytest.approx(2 / 3)  # three groups have two answers: two are mixed, and one has only wrong answers
    assert datasets.probe("p", snapshot, Client([None]), lambda *_: None) == report
    assert len({request.seed for request in client.asked}) == len(client.asked) == 8
    training = datasets.assemble("t", snapshot, report)
    assert rows(datasets, training.prompts)[0]["prompt_id"] in {
        row["prompt_id"] for row in rows(datasets, report.answers) if row["reward"] == 1.0
    }
    assert [row["probe_rewards"] for row in rows(datasets, training.prompts)] == ["mixed", "mixed", None, "equal"]
    assert training.facts.never_right == pytest.approx(1 / 3)
    assert training.facts.champion_reward == report.mean_reward
    assert all(row["origin"] == "probe" and row["votes"] == 0 for row in rows(datasets, report.answers))


@pytest.mark.slow
def test_a_champion_that_is_not_the_start_model_answers_the_same_prompts(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(probe={"samples": 2, "prompts": 3}))
    traces = [span(n, text, "A: 0", metadata__reference="1") for n, text in enumerate(TRAIN[:4], 1)]
    snapshot = frozen(datasets, *traces)
    first = next(row["prompt_id"] for row in rows(datasets, snapshot.prompts))
    pl.DataFrame({"prompt_id": [first]}).write_parquet(tmp_path / "rows.parquet")
    trained_on = datasets.artifacts.put_file(tmp_path / "rows.parquet")
    start, champion = Client(["A: 0"]), Client(["A: 1"])
    report = datasets.probe("p", snapshot, start, lambda *_: None, ProbedChampion((trained_on,), champion))
    assert [request.messages for request in start.asked] == [request.messages for request in champion.asked], "the same prompts"
    assert first not in {row["prompt_id"] for row in rows(datasets, report.answers)}, "the champion was trained on this one"
    assert (report.mean_reward, report.usual_reward) == (0.0, 1.0)
    facts = datasets.assemble("t", snapshot, report).facts
    assert (facts.usual_reward, facts.champion_reward, facts.best_of_k) == (1.0, 0.0, 0.0), "the champion has no room, the base has"
    elsewhere = datasets.probe("q", snapshot, start, lambda *_: None, ProbedChampion(None, champion))
    assert elsewhere.new_prompts is None, "nobody knows what it was trained on"


@pytest.mark.slow
def test_probe_without_any_answer_is_retryable(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    snapshot = frozen(datasets, span(1, TRAIN[0], metadata__reference="1"))
    with pytest.raises(Retryable, match="down"):
        datasets.probe("p", snapshot, Client([None]), lambda *_: None)


@pytest.mark.slow
def test_probe_needs_a_scorer_for_unseen_answers(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(rewards=[{"name": "user_feedback"}]))
    with pytest.raises(ConfigError, match="unseen"):
        datasets.probe("p", frozen(datasets, span(1, TRAIN[0])), Client(["x"]), lambda *_: None)


_SAMPLE = st.fixed_dictionaries(
    {
        "prompt_id": st.sampled_from(["p1", "p2"]),
        "answer": st.text("ab", min_size=1, max_size=3),
        "reward": st.none() | st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]),
        "tier": st.sampled_from(["verifiable", "feedback"]),
        "votes": st.integers(0, 4),
        "user": st.none() | st.sampled_from(["u1", "u2"]),
        "origin": st.sampled_from(["traffic", "probe"]),
    }
)


@pytest.mark.slow
@given(rows=st.lists(_SAMPLE, max_size=20), noise=st.none() | st.floats(0, 1), per_prompt=st.integers(1, 3), per_person=st.integers(1, 3))
def test_pairs_respect_margin_thresholds_and_caps(
    rows: list[dict[str, Any]], noise: float | None, per_prompt: int, per_person: int
) -> None:
    settings = SnapshotSettings(pairs_per_prompt=per_prompt, pairs_per_person=per_person)
    full = [
        row
        | {
            "prompt": "[]",
            "slice": None,
            "tools": None,
            "trace": str(index),
            "repeats": 1,
            "model_version": None,
            "parts": json.dumps({"v" if row["tier"] == "verifiable" else "f": row["reward"]}),
        }
        for index, row in enumerate(rows)
    ]
    frame = frame_of(full, SAMPLES)
    made = make_pairs(frame, settings, VERSIONS, noise, "salt")
    rewards = {(row["prompt_id"], row["tier"], row["answer"], row["reward"]) for row in rows}
    for pair in made.frame.iter_rows(named=True):
        assert pair["chosen"] != pair["rejected"]
        assert pair["margin"] >= settings.margin
        assert 0 < pair["weight"] <= 1
        better = [r for p, t, a, r in rewards if (p, t, a) == (pair["prompt_id"], pair["tier"], pair["chosen"]) and r is not None]
        assert max(better) >= settings.chosen_min
    counts = made.frame.group_by("prompt_id").len()
    assert counts.is_empty() or int(counts["len"].max() or 0) <= per_prompt  # type: ignore[arg-type]
    shuffled = make_pairs(frame.sample(fraction=1, shuffle=True, seed=3), settings, VERSIONS, noise, "salt")
    if len({(row["prompt_id"], row["tier"], row["answer"], row["reward"]) for row in rows}) == len(rows):
        assert shuffled.frame.sort(pl.all()).equals(made.frame.sort(pl.all()))
    known = {"prompt": "[]", "reference": "given", "reference_kind": "logged", "slice": None, "tools": None}
    references = frame_of([known | {"prompt_id": prompt} for prompt in ("p1", "p2")], PROMPTS)
    more = make_pairs(frame, settings.model_copy(update={"references_are_answers": True}), VERSIONS, noise, "salt", None, references)
    _check_added(made, more, per_prompt)


def _check_added(made: Pairs, more: Pairs, per_prompt: int) -> None:
    """Check the pairs that references add: they take no place of another pair, keep the caps, and reject only what is known to be wrong."""
    assert more.frame.head(len(made.frame)).equals(made.frame)
    added = more.frame.tail(len(more.frame) - len(made.frame))
    assert added["tier"].is_in(["verifiable", "feedback"]).all()
    sides = ["prompt_id", "tier", "chosen", "rejected"]
    assert added.unique(sides).height == added.height
    assert added.join(made.frame, on=sides, how="semi").is_empty()
    assert not added.filter(~pl.col("weight").is_between(0, 1, closed="right")).height
    assert added.filter(pl.col("tier") == "feedback")["weight"].gt(0.5).all()
    assert (more.frame.group_by("prompt_id").len()["len"] <= per_prompt).all()


def test_margin_must_hold_on_the_scorers_of_both_answers() -> None:
    versions = tuple(ScorerVersion(name=n, distribution="d", version="1", code="c", tier=Tier.VERIFIABLE, weight=1.0) for n in ("a", "b"))
    row = {
        "prompt_id": "p",
        "prompt": "[]",
        "tier": "verifiable",
        "votes": 0,
        "repeats": 1,
        "user": None,
        "origin": "probe",
        "model_version": None,
        "slice": None,
        "tools": None,
        "trace": None,
    }
    rows = [
        row | {"answer": "x", "reward": 0.75, "parts": '{"a": 0.5, "b": 1.0}'},
        row | {"answer": "y", "reward": 0.45, "parts": '{"a": 0.45, "b": null}'},
    ]
    made = make_pairs(frame_of(rows, SAMPLES), SnapshotSettings(), versions, None, "salt")
    assert made.dropped == {"margin_on_common_parts": 1}


def test_logged_answer_is_on_policy_only_if_the_router_attributes_it() -> None:
    row = {
        "prompt_id": "p",
        "prompt": "[]",
        "tier": "verifiable",
        "votes": 0,
        "repeats": 1,
        "user": None,
        "slice": None,
        "tools": None,
        "trace": None,
    }
    traffic = row | {"origin": "traffic", "parts": '{"v": 1.0}'}
    rows = [
        traffic | {"answer": "x", "reward": 1.0, "model_version": "v-1"},
        traffic | {"answer": "y", "reward": 0.0, "model_version": None, "parts": '{"v": 0.0}'},
    ]
    made = make_pairs(frame_of(rows, SAMPLES), SnapshotSettings(), VERSIONS, None, "salt")
    assert made.own == [(True, False)]
    assert off_policy(made.own) == 0.5
