"""Tests of label confidence from user ratings, and of the demonstrations selected by it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import ScorerVersion
from ratchet.contracts.data.records import PROMPTS, SAMPLES, Tier
from ratchet.contracts.loop import SnapshotSettings
from ratchet.materializer.labels.label_confidence import believe
from ratchet.materializer.lake.schemas import empty_frame, frame_of
from ratchet.materializer.training_sets.demonstrations import make_demonstrations, teachable

SCORERS = tuple(
    ScorerVersion(name=name, distribution="d", version="1", code="c", tier=tier, weight=1.0)
    for name, tier in (("f", Tier.FEEDBACK), ("v", Tier.VERIFIABLE))
)


def samples(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Samples from partial rows, with defaults for the missing fields."""
    base = {
        "tier": "feedback",
        "votes": 1,
        "repeats": 1,
        "slice": "s",
        "tools": None,
        "origin": "traffic",
        "user": None,
        "trace": None,
        "model_version": None,
    }
    full = []
    for i, row in enumerate(rows):
        made = base | {"prompt_id": f"p{i}", "answer": f"a{i}"} | row
        parts = {"f" if made["tier"] == "feedback" else "v": made["reward"]}
        prompt = json.dumps([{"role": "user", "content": made["prompt_id"]}])
        full.append({"prompt": prompt, "parts": json.dumps(parts), **made})
    return frame_of(full, SAMPLES)


def mixed(right: int, wrong: int, slice_: str, noise: float = 0.2) -> list[dict[str, Any]]:
    """Votes on `right` good and `wrong` bad answers, where a share `noise` of the votes is wrong."""
    ups = round(right * (1 - noise) + wrong * noise)
    return [{"reward": float(i < ups), "slice": slice_} for i in range(right + wrong)]


def test_positive_vote_is_weak_evidence_in_a_slice_with_few_right_answers() -> None:
    frame = samples([*mixed(180, 20, "easy"), *mixed(4, 196, "hard")])
    right = frame.with_columns(pl.Series("right", believe(frame, SCORERS, 0.2)))
    liked = {name: rows["right"].to_list() for (name,), rows in right.filter(pl.col("reward") == 1.0).group_by("slice")}
    assert min(liked["easy"]) > 0.9
    assert max(liked["hard"]) < 0.3


def test_verifiable_reward_is_used_directly_and_missing_reward_gives_one_half() -> None:
    frame = samples(
        [{"reward": 1.0, "tier": "verifiable"}, {"reward": 0.0, "tier": "verifiable"}, {"reward": None, "tier": None, "votes": 0}]
    )
    assert believe(frame, SCORERS, 0.3) == [1.0, 0.0, 0.5]


def test_votes_with_noise_of_one_half_carry_no_information() -> None:
    up, down = believe(samples([{"reward": 1.0}, {"reward": 0.0}]), SCORERS, 0.5)
    assert up == pytest.approx(down)


@pytest.mark.slow
@given(st.integers(1, 8), st.floats(0.02, 0.4))
def test_more_agreeing_votes_never_lower_the_confidence(votes: int, noise: float) -> None:
    frame = samples([{"reward": 1.0, "votes": n} for n in (votes, votes + 1)] + mixed(30, 30, "s", noise))
    fewer, more, *_ = believe(frame, SCORERS, noise)
    assert 0 < fewer <= more < 1


def demonstrations(rows: Sequence[dict[str, Any]], prompts: pl.DataFrame | None = None, **settings: Any) -> list[dict[str, Any]]:
    frame = make_demonstrations(
        samples(rows), empty_frame(PROMPTS) if prompts is None else prompts, SnapshotSettings(**settings), SCORERS, 0.1, "salt"
    )
    return frame.sort("prompt_id", "answer").to_dicts()


def test_strongest_evidence_on_a_prompt_selects_the_demonstrations() -> None:
    liked = {"prompt_id": "p", "answer": "liked", "reward": 1.0, "votes": 5}
    proven = {"prompt_id": "p", "answer": "proven", "reward": 1.0, "tier": "verifiable"}
    corrected = {"prompt_id": "p", "answer": "corrected", "reward": 1.0, "tier": "verifiable", "origin": "correction"}
    assert [row["answer"] for row in demonstrations([liked])] == ["liked"]
    assert [row["answer"] for row in demonstrations([liked, proven])] == ["proven"]
    found = demonstrations([liked, proven, corrected])
    assert [(row["answer"], row["source"], row["weight"]) for row in found] == [
        ("corrected", "correction", 1.0),
        ("proven", "verifiable", 1.0),
    ]


def test_an_answer_that_is_probably_wrong_excludes_no_answer_of_a_teacher() -> None:
    taught = {"prompt_id": "p", "answer": "taught", "reward": 0.75, "tier": "teacher", "origin": "teacher", "votes": 0, "slice": "hard"}
    rated = {"prompt_id": "p", "answer": "rated", "reward": 1.0, "votes": 1, "slice": "hard"}
    found = demonstrations([taught, rated, *mixed(1, 99, "hard", 0.1)])
    assert [(row["answer"], row["source"]) for row in found] == [("taught", "teacher")]
    liked = [(row["answer"], row["source"]) for row in demonstrations([taught, {**rated, "votes": 9, "slice": None}])]
    assert liked == [("rated", "feedback")], "an answer that many people rated well is stronger evidence"


def test_answers_that_are_probably_wrong_are_not_demonstrations() -> None:
    rows = [*mixed(1, 99, "hard", 0.1)]
    assert demonstrations(rows) == []


def test_prompts_that_the_model_answers_wrongly_are_teachable() -> None:
    rows = [
        {"prompt_id": "can", "answer": "right", "reward": 1.0, "tier": "verifiable"},
        {"prompt_id": "cannot", "answer": "wrong", "reward": 0.0, "tier": "verifiable"},
        {"prompt_id": "cannot", "answer": "told", "reward": 1.0, "tier": "verifiable", "origin": "correction"},
    ]
    frame = samples(rows)
    shown = make_demonstrations(frame, empty_frame(PROMPTS), SnapshotSettings(), SCORERS, 0.1, "salt")
    assert (len(shown), teachable(shown, frame, SCORERS, 0.1)) == (2, 1)


def test_references_are_demonstrations_only_if_the_loop_file_says_they_are_answers() -> None:
    row = {"prompt_id": "p", "prompt": "[]", "reference": "42", "reference_kind": "logged", "slice": None, "tools": None}
    prompts = frame_of([row], PROMPTS)
    assert demonstrations([], prompts) == []
    assert [found["source"] for found in demonstrations([], prompts, references_are_answers=True)] == ["reference"]


def test_caps_per_prompt_and_per_person_limit_demonstrations() -> None:
    rows = [{"prompt_id": "p", "answer": f"a{i}", "reward": 1.0, "tier": "verifiable"} for i in range(9)]
    assert len(demonstrations(rows, pairs_per_prompt=2)) == 2
    per_person = [{"reward": 1.0, "tier": "verifiable", "user": "ann"} for _ in range(9)]
    assert len(demonstrations(per_person, pairs_per_person=3)) == 3


def test_many_votes_on_one_answer_are_capped() -> None:
    """Votes on the same answer are not independent, so their number is capped. Very many votes also cause no overflow."""
    crowd = samples([{"reward": float(up), "votes": votes} for votes in (5, 160, 100_000) for up in (0, 1)])
    down, up, *rest = believe(crowd, SCORERS, 0.0)
    assert 0 < down < 0.001 < 0.999 < up < 1
    assert rest == [down, up, down, up]


def test_one_answer_with_many_votes_does_not_dominate_the_slice_prior() -> None:
    quiet = mixed(4, 196, "hard")
    loud = samples([{"reward": 1.0, "votes": 5_000, "slice": "hard"}, *quiet])
    liked = next(i for i, row in enumerate(quiet) if row["reward"] == 1.0) + 1
    assert believe(loud, SCORERS, 0.2)[liked] < 0.4
