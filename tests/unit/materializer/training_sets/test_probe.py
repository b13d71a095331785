"""Tests of the probe: the reward of a model's most frequent answer to each prompt, and the reasons of failed requests."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from ratchet.contracts.data.records import GRPO_PROMPTS, PROMPTS, SAMPLES
from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.evaluation import ChatAnswer
from ratchet.contracts.loop import ProbeSettings
from ratchet.materializer.lake.schemas import frame_of, parquet
from ratchet.materializer.training_sets.probe import ask, choose_prompts, group_rewards, in_order, never_right, usual

Draws = dict[str, Sequence[tuple[str, float | None]]]


def answers(draws: Draws) -> pl.DataFrame:
    """records.SAMPLES of a probe, from prompt -> (answer, reward) of each draw."""
    base = {"prompt": "[]", "tier": "verifiable", "parts": "{}", "votes": 0, "repeats": 1, "trace": None, "user": None, "origin": "probe"}
    none = {"model_version": None, "slice": None, "tools": None}
    found = [(prompt, text, reward) for prompt, drawn in draws.items() for text, reward in drawn]
    return frame_of([base | none | {"prompt_id": p, "answer": text, "reward": reward} for p, text, reward in found], SAMPLES)


def prompts(kinds: dict[str, str]) -> pl.DataFrame:
    return frame_of(
        [
            {"prompt_id": p, "prompt": "[]", "reference": "x", "reference_kind": kind, "slice": None, "tools": None}
            for p, kind in kinds.items()
        ],
        PROMPTS,
    )


def test_most_frequent_answer_determines_the_reward_of_a_prompt() -> None:
    found = answers({"p": [("x", 1.0), ("x", 1.0), ("y", 0.0), ("z", 0.0)], "q": [("x", 0.0), ("x", 0.0), ("y", 1.0)]})
    assert usual(found, prompts({"p": "logged", "q": "logged"}), set())[0] == pytest.approx(0.5)


def test_equally_frequent_answers_are_averaged_and_unscored_answers_ignored() -> None:
    found = answers({"p": [("x", 1.0), ("y", 0.0)], "q": [("x", None), ("x", None), ("y", 1.0)]})
    assert usual(found, prompts({"p": "logged", "q": "logged"}), set())[0] == pytest.approx(0.75)
    assert usual(answers({"p": [("x", None)]}), prompts({"p": "logged"}), set()) == (None, None, None)


@pytest.mark.parametrize(("unbiased", "expected"), [(20, 1.0), (19, 19 / 39)])
def test_corrected_prompts_count_only_if_there_are_too_few_other_prompts(unbiased: int, expected: float) -> None:
    right: Draws = {f"r{i}": [("x", 1.0), ("x", 1.0)] for i in range(unbiased)}
    wrong: Draws = {f"c{i}": [("y", 0.0), ("y", 0.0)] for i in range(20)}
    kinds = {name: "reference" if name in right else "correction" for name in right | wrong}
    assert usual(answers(right | wrong), prompts(kinds), set())[0] == pytest.approx(expected)


@pytest.mark.parametrize(("new", "expected"), [(20, (0.0, 20)), (19, (30 / 49, None))])
def test_prompts_that_the_model_was_trained_on_count_only_if_there_are_too_few_others(new: int, expected: tuple[float, int | None]) -> None:
    by_heart: Draws = {f"k{i}": [("x", 1.0), ("x", 1.0)] for i in range(30)}
    unknown: Draws = {f"n{i}": [("y", 0.0), ("y", 0.0)] for i in range(new)}
    every = prompts(dict.fromkeys(by_heart | unknown, "logged"))
    reward, _, counted = usual(answers(by_heart | unknown), every, set(by_heart))
    assert (reward, counted) == (pytest.approx(expected[0]), expected[1])


def test_prompts_that_the_champion_was_not_trained_on_are_asked_first() -> None:
    every, known = prompts({f"p{i}": "logged" for i in range(40)}), {f"p{i}" for i in range(30)}
    assert {*choose_prompts(every, 10, "salt", known)["prompt_id"]} == {f"p{i}" for i in range(30, 40)}
    assert len(choose_prompts(every, 12, "salt", known).filter(pl.col("prompt_id").is_in(sorted(known)))) == 2
    assert choose_prompts(every, 12, "salt", set()).equals(choose_prompts(every, 12, "salt", {"another"}))


def test_standard_error_depends_on_the_number_of_prompts() -> None:
    found = answers({f"p{i}": [("x", float(i > 0)), ("x", float(i > 0))] for i in range(25)})
    reward, error, _ = usual(found, prompts({f"p{i}": "logged" for i in range(25)}), set())
    assert (reward, error) == (pytest.approx(0.96), pytest.approx((0.96 * 0.04 / 25) ** 0.5))


def test_prompts_are_told_apart_by_the_rewards_of_their_answers() -> None:
    found = answers({"p": [("x", 1.0), ("y", 0.0)], "q": [("x", 0.3), ("x", 0.3)], "r": [("x", 1.0)], "s": [("x", 1.0), ("y", None)]})
    ready = in_order(prompts(dict.fromkeys("pqrst", "logged")), group_rewards(found))
    kinds = dict(ready.select("prompt_id", "probe_rewards").iter_rows())
    assert kinds == {"p": "mixed", "q": "equal", "r": None, "s": None, "t": None}
    assert ready.sort("order", "prompt_id")["prompt_id"].to_list() == ["p", "r", "s", "t", "q"]
    assert parquet(ready, GRPO_PROMPTS, ["order", "prompt_id"])


def test_a_prompt_is_never_answered_right_if_its_answers_are_equally_wrong() -> None:
    wrong: Draws = {"w": [("x", 0.0), ("y", 0.0)], "half": [("x", 0.5), ("y", 0.5)], "graded": [("x", 0.1), ("y", 0.4)]}
    right: Draws = {"r": [("x", 1.0), ("x", 1.0)], "m": [("x", 1.0), ("y", 0.0)], "single": [("x", 0.0)]}
    known = prompts(dict.fromkeys([*wrong, *right], "logged"))
    assert never_right(answers(wrong | right), known) == pytest.approx(2 / 5)
    assert never_right(answers(wrong), known.with_columns(reference=pl.lit(None, pl.String))) == 0.0
    half = pl.when(pl.col("prompt_id") == "w").then("reference")
    assert never_right(answers(wrong | right), known.with_columns(reference=half)) == pytest.approx(1 / 5), "of the prompts of the coverage"
    assert never_right(answers({}), known) is None


def asked(n: int, failed: int) -> Any:
    """Ask `n` prompts twice each, of which the last `failed` requests fail."""
    bad = ChatAnswer(text=None, error="HTTP 500: not stored", reason="CUDA out of memory")
    given = [*[ChatAnswer(text="yes")] * (2 * n - failed), *[bad] * failed]
    label = SimpleNamespace(reward=1.0, tier=None, parts_json="{}")
    scorers: Any = SimpleNamespace(label_unseen=lambda samples: [label] * len(samples))
    client: Any = SimpleNamespace(chat=lambda _requests, _progress: given)
    chosen = prompts({f"p{place}": "logged" for place in range(n)})
    return ask(chosen, ProbeSettings(samples=2), scorers, client, "salt", lambda *_: None)


def test_reasons_of_failed_requests_are_counted() -> None:
    assert asked(10, 14).reasons == {"HTTP 500: CUDA out of memory": 14}
    assert asked(10, 14).failures == 14
    assert asked(1, 0).reasons == {}


def test_probe_without_any_answer_names_the_reason() -> None:
    with pytest.raises(Retryable, match=r"any of 4 requests: HTTP 500: CUDA out of memory \(4\); check"):
        asked(2, 4)


@pytest.mark.parametrize("code", ["HTTP 400", "HTTP 413", "HTTP 422"])
def test_a_server_that_refuses_all_prompts_is_not_asked_again(code: str) -> None:
    refused = ChatAnswer(text=None, error=f"{code}: Bad Request", reason="the prompt has 46 tokens, the context has 24")
    client: Any = SimpleNamespace(chat=lambda requests, _: [refused] * len(requests))
    with pytest.raises(Permanent, match=rf"refuses all 2 requests of the probe: {code}: the prompt has 46 tokens, .* \(2\)"):
        ask(prompts({"p": "logged"}), ProbeSettings(samples=2), SimpleNamespace(), client, "salt", lambda *_: None)  # type: ignore[arg-type]
    client.chat = lambda requests, _: [refused, ChatAnswer(text=None, error="HTTP 500: x")][: len(requests)]
    with pytest.raises(Retryable, match="check the model server"):
        ask(prompts({"p": "logged"}), ProbeSettings(samples=2), SimpleNamespace(), client, "salt", lambda *_: None)  # type: ignore[arg-type]
