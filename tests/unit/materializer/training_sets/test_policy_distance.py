"""Tests of the policy distance: 0 for answers of the same policy, 1 for answers that the probed model never gives."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import polars as pl
import pytest

from ratchet.contracts.data.records import PROMPTS, SAMPLES
from ratchet.materializer.lake.schemas import empty_frame, frame_of
from ratchet.materializer.training_sets.policy_distance import policy_distance

WORDS = [f"w{i}" for i in range(30)]
Policy = Callable[[random.Random], str]


def mostly_the_same(chance: random.Random) -> str:
    return "get pods -n web" if chance.random() < 0.7 else f"get pods -n {chance.choice(WORDS)}"


def free_text(chance: random.Random) -> str:
    return " ".join(chance.choices(WORDS[:20], k=12))


def other_words(chance: random.Random) -> str:
    return " ".join(chance.choices(WORDS[15:], k=12))


def samples(prompts: int, times: int, policy: Policy, origin: str, seed: int) -> pl.DataFrame:
    """records.SAMPLES with `times` answers to each prompt. Equal answers of traffic are one row, as after governance."""
    chance = random.Random(seed)
    base = {
        "prompt": "[]",
        "reward": None,
        "tier": None,
        "parts": "{}",
        "votes": 0,
        "user": None,
        "model_version": None,
        "slice": None,
        "tools": None,
    }
    rows = []
    for prompt in range(prompts):
        answers = [policy(chance) for _ in range(times)]
        counted = Counter(answers).items() if origin == "traffic" else [(answer, 1) for answer in answers]
        row = base | {"prompt_id": f"p{prompt}", "trace": None, "origin": origin}
        rows += [row | {"answer": answer, "repeats": repeats} for answer, repeats in counted]
    return frame_of(rows, SAMPLES)


def distance(logging: Policy, model: Policy, prompts: int = 400, seed: int = 0) -> tuple[float, float]:
    logged, drawn = samples(prompts, 5, logging, "traffic", seed), samples(prompts, 4, model, "probe", seed + 1000)
    found = policy_distance(logged, drawn, empty_frame(PROMPTS))
    assert found[0] is not None
    assert found[1] is not None
    return found


@pytest.mark.parametrize("policy", [mostly_the_same, free_text])
@pytest.mark.parametrize("seed", range(4))
def test_answers_of_the_same_policy_have_distance_zero(policy: Policy, seed: int) -> None:
    far, error = distance(policy, policy, seed=seed)
    assert abs(far) < 3.5 * error < 0.15


@pytest.mark.slow
def test_answers_that_the_model_never_gives_have_a_large_distance() -> None:
    assert distance(free_text, mostly_the_same) == (1.0, 0.0)
    far, error = distance(other_words, free_text)
    assert far - 2 * error > 0.5


@pytest.mark.slow
def test_distance_equals_the_share_of_answers_of_another_policy() -> None:
    def mixed(share: float) -> Policy:
        return lambda chance: other_words(chance) if chance.random() < share else mostly_the_same(chance)

    for share in (0.0, 0.25, 0.5, 1.0):
        far, error = distance(mixed(share), mostly_the_same)
        assert abs(far - share) < 3.5 * error + 1e-9 < 0.15


def test_most_likely_answers_of_the_model_have_a_negative_distance() -> None:
    far, error = distance(lambda _: "get pods -n web", mostly_the_same)
    assert far + 2 * error < 0


def test_corrections_and_prompts_without_a_probe_are_ignored() -> None:
    logged, drawn = samples(40, 2, free_text, "traffic", 1), samples(40, 4, mostly_the_same, "probe", 2)
    asked = empty_frame(PROMPTS)
    only = policy_distance(pl.concat([logged, samples(40, 3, free_text, "correction", 3)]), drawn, asked)
    assert only == policy_distance(logged, drawn, asked)
    assert policy_distance(logged, empty_frame(SAMPLES), asked) == (None, None)
    assert policy_distance(samples(19, 2, free_text, "traffic", 1), drawn, asked) == (None, None)
    assert policy_distance(logged, samples(40, 1, free_text, "probe", 2), asked) == (None, None), (
        "a single draw cannot be compared with other draws"
    )


@pytest.mark.parametrize(("fair", "expected"), [(20, 0.0), (19, 0.5)])
def test_corrected_prompts_count_only_if_there_are_too_few_other_prompts(fair: int, expected: float) -> None:
    """The logged answer to a corrected prompt is a poor one, so corrected prompts bias the distance."""
    logged = pl.concat([samples(fair, 1, lambda _: "a", "traffic", 1), samples(40, 1, lambda _: "b", "traffic", 1)[fair:]])
    base = {"prompt": "[]", "reference": "a", "slice": None, "tools": None}
    asked = [base | {"prompt_id": f"p{i}", "reference_kind": "logged" if i < fair else "correction"} for i in range(40)]
    far, _ = policy_distance(logged, samples(40, 4, lambda _: "a", "probe", 1), frame_of(asked, PROMPTS))
    assert far == pytest.approx(expected, abs=0.05)
