"""Tests that every row of a snapshot has one destination, and that rows that became nothing have the right reason."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import ScorerVersion
from ratchet.contracts.data.records import PROMPTS, SAMPLES, Tier
from ratchet.contracts.loop import SnapshotSettings
from ratchet.materializer.labels.conflicts import pooled
from ratchet.materializer.lake.schemas import frame_of
from ratchet.materializer.training_sets.account import BOTH, PAIR_CHOSEN, PAIR_REJECTED, SHOWN, Account, account
from ratchet.materializer.training_sets.demonstrations import make_demonstrations
from ratchet.materializer.training_sets.development import Part
from ratchet.materializer.training_sets.pairs import make_pairs

VERSIONS = tuple(ScorerVersion(name=f"of-{tier.value}", distribution="d", version="1", code="c", tier=tier, weight=1.0) for tier in Tier)


def sample(prompt: str, answer: str, reward: float | None, tier: str | None = "verifiable", **changes: Any) -> dict[str, Any]:
    row = {"prompt_id": prompt, "prompt": f'[{{"role":"user","content":"{prompt}"}}]', "answer": answer, "reward": reward, "tier": tier}
    parts = f'{{"of-{tier}":{reward}}}' if reward is not None else "{}"
    plain = {"parts": parts, "votes": int(tier == "feedback"), "repeats": 1, "trace": f"s/{prompt}-{answer}", "user": None}
    return row | plain | {"origin": "traffic", "model_version": None, "slice": None, "tools": None} | changes


def reference(prompt: str, text: str = "right") -> dict[str, Any]:
    content = f'[{{"role":"user","content":"{prompt}"}}]'
    return {"prompt_id": prompt, "prompt": content, "reference": text, "reference_kind": "reference", "slice": None, "tools": None}


def accounted(rows: list[dict[str, Any]], references: list[dict[str, Any]] | None = None, **settings: Any) -> Account:
    """Build pairs and demonstrations as the product does, and return the account. Prompts named `d…` are development prompts."""
    given_settings = SnapshotSettings(**settings)
    samples, prompts = frame_of(rows, SAMPLES), frame_of(references or [], PROMPTS)
    every = pl.concat([samples["prompt_id"], prompts["prompt_id"]]).unique().to_list()
    parts = {Part.DEVELOPMENT: [p for p in every if p[0] == "d"], Part.NEITHER: [p for p in every if p[0] == "n"]}
    trained = ~pl.col("prompt_id").is_in([*parts[Part.DEVELOPMENT], *parts[Part.NEITHER]])
    evidence = pooled(samples).filter(trained)
    pairs = make_pairs(evidence, given_settings, VERSIONS, 0.15, "salt", None, prompts.filter(trained))
    shown = make_demonstrations(evidence, prompts.filter(trained), given_settings, VERSIONS, 0.15, "salt")
    return account(samples, evidence, prompts, parts, pairs, shown, given_settings, VERSIONS, 0.15)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([sample("p", "right", 1.0)], SHOWN),
        ([sample("d", "right", 1.0)], "development prompt"),
        ([sample("n", "right", 1.0)], "nothing: prompt joined both parts"),
        ([sample("p", "x", None, None)], "nothing: no score"),
        ([sample("p", "x", 0.5)], "nothing: neither right nor wrong"),
        ([sample("p", "wrong", 0.0)], "nothing: no right answer to compare with"),
        ([sample("p", "up", 1.0, "feedback")], "nothing: too few ratings to believe it"),
    ],
)
def test_single_row_has_its_destination(rows: list[dict[str, Any]], expected: str) -> None:
    (found,) = accounted(rows, demonstration_min=1.0).values()
    assert found == {expected: 1}


def test_both_sides_of_a_pair_and_its_correction_are_named() -> None:
    found = accounted([sample("p", "wrong", 0.0), sample("p", "right", 1.0, origin="correction")])
    assert found == {"correction": {BOTH: 1}, "answer scored by a verifiable reward": {PAIR_REJECTED: 1}}


def test_contradictory_answers_limits_and_stronger_evidence_have_their_reasons() -> None:
    twice = [sample("p", "same", 1.0), sample("p", "same", 0.0, trace="s/other")]
    assert accounted(twice) == {"answer scored by a verifiable reward": {"nothing: contradictory evidence on the answer": 2}}
    many = [sample("p", f"right {n}", 1.0) for n in range(3)]
    assert accounted(many, pairs_per_prompt=2)["answer scored by a verifiable reward"] == {
        SHOWN: 2,
        "nothing: pairs_per_prompt is reached": 1,
    }
    wrongs = [sample("p", "right", 1.0), *[sample("p", f"wrong {n}", 0.0) for n in range(3)]]
    assert accounted(wrongs, pairs_per_prompt=2)["answer scored by a verifiable reward"] == {
        BOTH: 1,
        PAIR_REJECTED: 2,
        "nothing: pairs_per_prompt is reached": 1,
    }
    rated = [sample("p", "up", 1.0, "feedback", votes=9), sample("p", "right", 1.0, origin="correction")]
    assert accounted(rated)["rated answer"] == {"nothing: stronger evidence on the prompt": 1}


def test_the_limit_per_person_and_small_differences_are_told_apart() -> None:
    same = [sample(prompt, "right", 1.0, user="u") for prompt in ("p", "q")] + [sample(prompt, "wrong", 0.0, user="u") for prompt in "pq"]
    assert accounted(same, pairs_per_person=1)["answer scored by a verifiable reward"] == {
        SHOWN: 1,
        PAIR_CHOSEN: 1,
        PAIR_REJECTED: 1,
        "nothing: pairs_per_person is reached": 1,
    }
    near = [sample("p", "right", 0.7), sample("p", "wrong", 0.45)]
    assert accounted(near)["answer scored by a verifiable reward"] == {
        "nothing: reward too low for snapshot.demonstration_min": 1,
        "nothing: less than snapshot.margin worse than each right answer": 1,
    }
    parts = {"parts": '{"other": 0.0}'}
    assert accounted([sample("p", "right", 1.0), sample("p", "wrong", 0.0, **parts)])["answer scored by a verifiable reward"] == {
        SHOWN: 1,
        "nothing: too little worse by the scorers that scored both answers of a pair": 1,
    }


def test_chosen_side_that_is_no_demonstration_is_named() -> None:
    rated = [sample("p", "up", 1.0, "feedback"), sample("p", "down", 0.0, "feedback"), sample("p", "right", 1.0, origin="correction")]
    assert accounted(rated)["rated answer"] == {PAIR_CHOSEN: 1, PAIR_REJECTED: 1}


def test_references_are_demonstrations_or_only_score_answers() -> None:
    assert accounted([], [reference("p"), reference("d")], references_are_answers=True) == {
        "reference": {SHOWN: 1, "development prompt": 1}
    }
    assert accounted([], [reference("p")]) == {"reference": {"scores answers; references_are_answers is off": 1}}


def test_a_reference_is_the_chosen_side_where_no_sampled_answer_is_right() -> None:
    wrongs = [sample("p", f"wrong {n}", 0.0) for n in range(3)]
    assert accounted(wrongs, [reference("p")], references_are_answers=True, pairs_per_prompt=2) == {
        "answer scored by a verifiable reward": {PAIR_REJECTED: 2, "nothing: pairs_per_prompt is reached": 1},
        "reference": {BOTH: 1},
    }
    assert accounted(wrongs, [reference("p")])["answer scored by a verifiable reward"] == {"nothing: no right answer to compare with": 3}


def test_a_judged_answer_is_not_known_to_be_wrong() -> None:
    found = accounted([sample("p", "wrong", 0.0, "judge")], [reference("p")], references_are_answers=True)
    assert found["judged answer"] == {"nothing: no right answer to compare with": 1}


ROWS = st.builds(
    sample,
    prompt=st.sampled_from(["p", "q", "d", "n"]),
    answer=st.sampled_from(["a", "b", "c"]),
    reward=st.sampled_from([None, 0.0, 0.3, 0.5, 0.8, 1.0]),
    tier=st.sampled_from([tier.value for tier in Tier]),
    votes=st.integers(0, 5),
    user=st.sampled_from([None, "u", "v"]),
    origin=st.sampled_from(["traffic", "correction"]),
)


@pytest.mark.slow
@given(st.lists(ROWS, max_size=14), st.lists(st.sampled_from(["p", "q", "d"]), unique=True), st.integers(1, 3), st.booleans())
def test_the_account_adds_up_to_all_rows(rows: list[dict[str, Any]], known: list[str], limit: int, answers: bool) -> None:
    rows = [row if row["reward"] is not None else row | {"tier": None} for row in rows]
    found = accounted(rows, [reference(prompt) for prompt in known], pairs_per_prompt=limit, references_are_answers=answers)
    assert sum(n for counts in found.values() for n in counts.values()) == len(rows) + len(known)
