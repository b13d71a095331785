"""Tests of the client of a judge against a real server: concurrency, busy servers, budget, invalid replies, errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError, Permanent, Retryable
from ratchet.rewards.judge import round as module
from ratchet.rewards.judge.client import Answer, BudgetSpent, JudgeClient
from ratchet.rewards.judge.messages import Question, about_answer
from ratchet.rewards.judge.options import EndpointOptions
from ratchet.rewards.judge.verdict import Outcome
from tests.judge_stub import Reply, Stub, grade, parts, serving

PLENTY = 10**9


def questions(count: int) -> list[Question]:
    """Return questions with distinct answers `0`, `1`, …"""
    return [about_answer("c", {"prompt": [{"role": "user", "content": "?"}], "answer": str(n)}) for n in range(count)]


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serving(Stub(model=lambda body: grade(4))) as running:
        yield running


def _ask(stub: Stub, count: int, left: int = PLENTY, **options: Any) -> dict[int, Answer]:
    found: dict[int, Answer] = {}
    JudgeClient("judge", EndpointOptions(url=stub.url, model="m", **options)).ask(questions(count), left, found.__setitem__)
    return found


def test_every_question_gets_its_own_answer(stub: Stub) -> None:
    stub.model = lambda body: grade(1 + int(parts(body)["answer"]) % 5)
    found = _ask(stub, 50)
    assert {index: answer.value for index, answer in found.items()} == {n: (n % 5) / 4 for n in range(50)}
    assert stub.requests == 50


@pytest.mark.slow
def test_requests_overlap_up_to_the_limit(stub: Stub) -> None:
    stub.seconds = 0.2
    _ask(stub, 60, concurrency=7)
    assert stub.most == 7


def test_each_request_has_a_new_mark(stub: Stub) -> None:
    _ask(stub, 20)
    assert len({body["messages"][1]["content"].split(" ")[0] for body in stub.bodies}) == 20
    assert stub.bodies[0]["response_format"]["json_schema"]["strict"] is True
    assert stub.bodies[0]["temperature"] == 0


def test_a_server_without_schemas_gets_none(stub: Stub) -> None:
    _ask(stub, 1, structured=False)
    assert "response_format" not in stub.bodies[0]


@pytest.mark.slow
def test_a_busy_server_gets_fewer_requests_and_answers_all(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.random, "uniform", lambda low, high: 0.05)
    stub.slots, stub.queue, stub.seconds = 4, 0, 0.005
    assert len(_ask(stub, 120, concurrency=32)) == 120
    assert stub.refused < 120


def test_the_server_says_when_to_try_again(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    refusals = iter([(429, {"retry-after": "17"}), (503, {"retry-after": "11"})])

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    monkeypatch.setattr(module.Pace, "paused", lambda self, now: 0.0)
    monkeypatch.setattr(module.Pace, "may_start", lambda self, now: True)
    stub.model = lambda body: next(refusals, grade(3))
    assert _ask(stub, 1)[0].value == 0.5
    assert waits == [17.0, 11.0]


def test_a_server_that_never_answers_ends_the_try_and_keeps_the_verdicts(stub: Stub) -> None:
    stub.model = lambda body: grade(3) if parts(body)["answer"] == "0" else (503, {})
    found: dict[int, Answer] = {}
    client = JudgeClient("judge", EndpointOptions(url=stub.url, model="m", patience=0.2, concurrency=1))
    with pytest.raises(Retryable, match="answers HTTP 503; check it"):
        client.ask(questions(3), PLENTY, found.__setitem__)
    assert list(found) == [0]


def test_a_server_that_is_away_is_retried_later() -> None:
    client = JudgeClient("judge", EndpointOptions(url="http://127.0.0.1:9/v1", model="m", patience=0.2))
    with pytest.raises(Retryable, match="does not answer"):
        client.ask(questions(2), PLENTY, lambda index, answer: None)


def test_an_invalid_reply_is_repaired_once(stub: Stub) -> None:
    replies = {"0": ["five", grade(5)], "1": ["five", "still five", grade(5)]}
    lock = threading.Lock()

    def model(body: dict[str, Any]) -> Reply:
        with lock:
            return replies[parts(body)["answer"]].pop(0)

    stub.model = model
    found = _ask(stub, 2)
    assert (found[0].outcome, found[0].value) == (Outcome.SCORED, 1.0)
    assert (found[1].outcome, found[1].value) == (Outcome.INVALID, None)
    assert stub.requests == 4
    assert max(len(body["messages"]) for body in stub.bodies) == 4


def test_the_budget_ends_the_call_and_not_silently(stub: Stub) -> None:
    stub.seconds = 0.001
    found: dict[int, Answer] = {}
    client = JudgeClient("judge", EndpointOptions(url=stub.url, model="m", budget=20_000, max_tokens=64))
    with pytest.raises(BudgetSpent, match="budget of 20,000 tokens in 24 hours is used up"):
        client.ask(questions(500), 20_000, found.__setitem__)
    used = sum(answer.tokens for answer in found.values())
    assert 10 < len(found) < 500
    assert 15_000 < used <= 20_000


def test_the_budget_is_never_exceeded_by_requests_at_the_same_time(stub: Stub) -> None:
    with pytest.raises(BudgetSpent):
        _ask(stub, 100, left=2000, max_tokens=512, concurrency=64)
    assert stub.most <= 2


def test_a_text_that_the_server_rejects_gets_no_score(stub: Stub) -> None:
    stub.model = lambda body: (400, {}) if parts(body)["answer"] == "3" else grade(2)
    found = _ask(stub, 10)
    assert (found[3].outcome, found[3].value) == (Outcome.REJECTED, None)
    assert len(found) == 10


def test_a_single_rejected_text_is_no_wrong_setting(stub: Stub) -> None:
    stub.model = lambda body: (413, {})
    assert _ask(stub, 1) == {0: Answer(Outcome.REJECTED, None, 0)}


def test_a_server_that_rejects_everything_is_a_wrong_setting(stub: Stub) -> None:
    stub.model = lambda body: (400, {})
    with pytest.raises(Permanent, match="rejects all requests"):
        _ask(stub, 20)
    stub.model = lambda body: (404, {})
    with pytest.raises(Permanent, match="HTTP 404; correct url, model or key"):
        _ask(stub, 20)


def test_the_key_comes_from_a_reference(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.key = "k-1"
    with pytest.raises(Permanent, match="HTTP 401"):
        _ask(stub, 1)
    with pytest.raises(ConfigError, match="JUDGE_KEY with the API key is not set"):
        _ask(stub, 1, key_env="JUDGE_KEY")
    monkeypatch.setenv("JUDGE_KEY", "k-1")
    assert len(_ask(stub, 1, key_env="JUDGE_KEY")) == 1
    with pytest.raises(ConfigError, match="not readable"):
        _ask(stub, 1, key_file=str(tmp_path / "absent"))
    (tmp_path / "key").write_text("k-1\n")
    assert len(_ask(stub, 1, key_file=str(tmp_path / "key"))) == 1


def test_no_question_needs_no_server() -> None:
    JudgeClient("judge", EndpointOptions(url="http://127.0.0.1:9/v1", model="m")).ask([], 0, lambda index, answer: None)


@pytest.mark.parametrize("content", [None, [], {"choices": []}, {"choices": [{"message": {"content": None}}]}, {"choices": 5}])
def test_a_reply_that_is_no_completion_has_no_text(content: Any) -> None:
    assert module._text(content) == ""
    assert module._tokens(content, 7) == 7


def test_the_tokens_are_those_that_the_server_counts() -> None:
    assert module._tokens({"usage": {"total_tokens": 5}}, 7) == 5
    assert module._tokens({"usage": {"prompt_tokens": 5, "completion_tokens": 1}}, 7) == 6
    assert module._tokens({"usage": {"prompt_tokens": 5}}, 7) == 7


@pytest.mark.parametrize("usage", ["1e999", "NaN", "-5", '"many"', "[1e999]"])
def test_a_reply_with_strange_numbers_costs_one_answer_and_not_the_round(stub: Stub, usage: str) -> None:
    good = json.dumps({"choices": [{"message": {"role": "assistant", "content": grade(4)}}]})
    strange = f'{good[:-1]}, "usage": {{"total_tokens": {usage}}}}}'.encode()
    stub.model = lambda body: strange if parts(body)["answer"] == "3" else grade(4)
    found = _ask(stub, 8)
    assert sorted(found) == list(range(8))
    assert all(answer.value == 0.75 for index, answer in found.items() if index != 3)
    assert 0 < found[3].tokens < PLENTY


def test_a_reply_without_an_end_is_not_read_to_the_end(stub: Stub) -> None:
    stub.keep = False
    stub.model = lambda body: b" " * (module._MAX_REPLY + 1) if parts(body)["answer"] == "3" else grade(4)
    found = _ask(stub, 8)
    assert found[3].value is None
    assert sum(answer.value == 0.75 for answer in found.values()) == 7
