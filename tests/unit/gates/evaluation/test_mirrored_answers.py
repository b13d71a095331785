"""Tests of how the answers to a mirrored prompt are compared: as at the gate, and without anything that is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from ratchet.contracts.data.datasets import Label
from ratchet.contracts.data.records import Tier
from ratchet.contracts.evaluation import ChatAnswer, ChatRequest
from ratchet.contracts.fakes import FakeClient, FakeRewards
from ratchet.contracts.loop import GateSettings
from ratchet.contracts.mirror import MirrorOutcome, MirrorPrompt
from ratchet.contracts.ports import Progress
from ratchet.gates.evaluation.evaluator import PairedEvaluator


class Recording(FakeClient):
    """A client that remembers its requests."""

    def __init__(self, answer: Callable[[ChatRequest], str | None] = lambda _request: "yes") -> None:
        super().__init__(answer)
        self.requests: list[ChatRequest] = []

    def chat(self, requests: Sequence[ChatRequest], progress: Progress | None = None) -> list[ChatAnswer]:
        self.requests += requests
        return super().chat(requests, progress)


class Judges(FakeRewards):
    """Judges that grade all answers alike, prefer the answer "good", and give no grade to "odd"."""

    def label_unseen(self, samples: Sequence[Mapping[str, Any]]) -> list[Label]:
        grades = [None if sample["answer"] == "odd" else 0.5 for sample in samples]
        return [Label(grade, grade and Tier.JUDGE, {"judge": grade}, 0, frozenset({"judge"} if grade else ())) for grade in grades]  # type: ignore[arg-type]

    def prefer(self, samples: Sequence[Mapping[str, Any]], others: Sequence[str]) -> list[float | None]:
        return [
            None if sample["answer"] == other else float(sample["answer"] == "good") for sample, other in zip(samples, others, strict=True)
        ]


def prompt(n: int, reference: str | None = "yes") -> MirrorPrompt:
    tool = {"type": "function", "function": {"name": "add"}}
    return MirrorPrompt(key=f"k{n}", person="p", messages=({"role": "user", "content": str(n)},), tools=(tool,), reference=reference)


def asked(
    old: Callable[[ChatRequest], str | None], new: Callable[[ChatRequest], str | None], count: int = 3, rewards: Any = None, **gate: Any
) -> tuple[list[MirrorOutcome], Recording, Recording]:
    clients = Recording(old), Recording(new)
    evaluator = PairedEvaluator(None, rewards or FakeRewards(), GateSettings(**gate))  # type: ignore[arg-type]
    return evaluator.mirror([prompt(n) for n in range(count)], *clients, lambda *_: None), *clients


def only(n: int, text: str | None, otherwise: str | None = "yes") -> Callable[[ChatRequest], str | None]:
    return lambda request: text if request.messages[0]["content"] == str(n) else otherwise


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_both_versions_get_the_same_requests(temperature: float) -> None:
    _, old, new = asked(lambda _: "yes", lambda _: "yes", temperature=temperature, max_tokens=99)
    assert old.requests == new.requests
    assert {(one.temperature, one.max_tokens, len(one.tools), one.session) for one in old.requests} == {(temperature, 99, 1, None)}
    seeds = {one.seed for one in old.requests}
    assert seeds == {None} if temperature == 0 else len(seeds) == 3


def test_the_difference_is_candidate_minus_champion() -> None:
    found, *_ = asked(only(0, "no"), only(1, "no"))
    assert [one.difference for one in found] == [1.0, -1.0, 0.0]


def test_a_failure_of_the_candidate_alone_is_reward_0_and_one_of_the_champion_is_left_out() -> None:
    found, *_ = asked(only(0, None), only(1, None))
    assert [(one.difference, one.failed) for one in found] == [(None, True), (-1.0, False), (0.0, False)]


def test_judges_compare_the_two_answers() -> None:
    found, *_ = asked(only(0, "good", "bad"), only(1, "good", "bad"), rewards=Judges())
    assert [one.difference for one in found] == [-1.0, 1.0, 0.0]


def test_a_version_that_answers_nothing_is_judged_by_it() -> None:
    found, *_ = asked(lambda _: "yes", lambda _: None, count=1)
    assert [(one.difference, one.failed) for one in found] == [(-1.0, False)], "also in a batch of one prompt"
    found, *_ = asked(lambda _: None, lambda _: "yes")
    assert [(one.difference, one.failed) for one in found] == [(None, True)] * 3


def test_an_answer_of_the_candidate_alone_that_cannot_be_scored_is_reward_0() -> None:
    found, *_ = asked(lambda _: "good", only(1, "odd", "good"), rewards=Judges())
    assert [(one.difference, one.failed) for one in found] == [(0.0, False), (-0.5, False), (0.0, False)]
    found, *_ = asked(only(1, "odd", "good"), lambda _: "good", rewards=Judges())
    assert [(one.difference, one.failed) for one in found] == [(0.0, False), (None, False), (0.0, False)]
