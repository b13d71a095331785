"""Tests of the evaluation over real HTTP with faulty servers: a failure is not counted as an answer or as a score of zero."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ratchet.contracts.conversation import answer_message, stored_answer
from ratchet.contracts.data.datasets import HoldoutEdition, Label
from ratchet.contracts.data.records import Tier
from ratchet.contracts.errors import Inconclusive, Unreachable
from ratchet.contracts.evaluation import UNLIKE, ChatRequest, EarlierAnswers, EvalReport, Result, verdict_of
from ratchet.contracts.fakes import FakeRewards, MemoryArtifacts, fake_model
from ratchet.contracts.ids import digest
from ratchet.contracts.loop import GateSettings
from ratchet.contracts.serving import Endpoint
from ratchet.gates.checks import checks
from ratchet.gates.evaluation.evaluator import PairedEvaluator
from ratchet.gates.model_client import HttpModelClient
from tests.unit.gates.scripted import store

Reply = tuple[int, bytes, dict[str, str]]
Behaviour = Callable[[dict[str, Any]], Reply]


def completion(text: Any, **more: Any) -> Reply:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"} | more
    return 200, json.dumps({"choices": [choice]}).encode(), {"x-ratchet-version": "v-1"}


class Server(ThreadingHTTPServer):
    """An HTTP server whose queue holds all concurrent connections; a refused one would be tried again after a second."""

    request_queue_size = 64


class Backend:
    """A server with scripted behaviour. It records the requests."""

    def __init__(self) -> None:
        self.behaviour: Behaviour = lambda _body: completion("yes")
        self.asked: list[dict[str, Any]] = []
        backend = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                backend.asked.append(body)
                status, content, headers = backend.behaviour(body)
                if status == 0:
                    self.wfile.write(content)
                    return
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def client(self, timeout: float = 10.0) -> HttpModelClient:
        return HttpModelClient(Endpoint(tag="v-1", url=self.url, model="m"), concurrency=8, timeout=timeout)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def backend() -> Iterator[Backend]:
    backend = Backend()
    yield backend
    backend.close()


@pytest.fixture
def other() -> Iterator[Backend]:
    backend = Backend()
    yield backend
    backend.close()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the pauses between retries."""
    monkeypatch.setattr("ratchet.gates.model_client.time.sleep", lambda _seconds: None)


def ask(n: int = 1, **fields: Any) -> list[ChatRequest]:
    return [ChatRequest(messages=({"role": "user", "content": f"q{i}"},), **fields) for i in range(n)]


def test_answers_are_in_order_and_attributed(backend: Backend) -> None:
    backend.behaviour = lambda body: completion(body["messages"][0]["content"].upper())
    answers = backend.client().chat(ask(50, temperature=0.5, seed=3, max_tokens=7))
    assert [answer.text for answer in answers] == [f"Q{i}" for i in range(50)]
    assert {answer.version for answer in answers} == {"v-1"}
    assert {(body["model"], body["temperature"], body["seed"], body["max_tokens"]) for body in backend.asked} == {("m", 0.5, 3, 7)}


def zipped(_body: dict[str, Any]) -> Reply:
    return 200, b"this is not gzip", {"content-encoding": "gzip"}


def nested(_body: dict[str, Any]) -> Reply:
    return 200, b'{"choices":' + b"[" * 20_000, {}


BROKEN: dict[str, Behaviour] = {
    "500": lambda _: (500, b"oops", {}),
    "404": lambda _: (404, b'{"error":{}}', {}),
    "redirect": lambda _: (302, b"", {"location": "http://127.0.0.1:1/"}),
    "empty": lambda _: (200, b"", {}),
    "garbage": lambda _: (200, b"\xff\xfe<html>", {}),
    "not an object": lambda _: (200, b"[1]", {}),
    "null": lambda _: (200, b"null", {}),
    "no choices": lambda _: (200, b'{"choices": []}', {}),
    "choices of text": lambda _: (200, b'{"choices": ["hello"]}', {}),
    "no message": lambda _: (200, b'{"choices": [{}]}', {}),
    "null message": lambda _: (200, b'{"choices": [{"message": null}]}', {}),
    "null content": lambda _: completion(None),
    "content of parts": lambda _: completion([{"type": "text", "text": "yes"}]),
    "number": lambda _: completion(5),
    "bad gzip": zipped,
    "nested": nested,
    "not http": lambda _: (0, b"SSH-2.0-OpenSSH\r\n", {}),
    "closed": lambda _: (0, b"", {}),
}


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("how", BROKEN)
def test_invalid_reply_gives_an_answer_with_an_error(backend: Backend, how: str) -> None:
    backend.behaviour = lambda body: BROKEN[how](body) if body["messages"][0]["content"] == "q1" else completion("yes")
    good, bad, also = backend.client().chat(ask(3))
    assert (good.text, also.text) == ("yes", "yes")
    assert bad.text is None
    assert bad.error


@pytest.mark.parametrize("finish", [5, None, {"reason": "x"}, ["stop"]])
def test_answer_with_invalid_finish_reason_is_valid(backend: Backend, finish: Any) -> None:
    backend.behaviour = lambda _: completion("yes", finish_reason=finish)
    (answer,) = backend.client().chat(ask())
    assert answer.text == "yes"


def test_tools_are_sent_and_an_answer_of_tool_calls_is_an_answer(backend: Backend) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    backend.behaviour = lambda _body: completion(None, message=message, finish_reason="tool_calls")
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}
    (answer,) = backend.client().chat([ChatRequest(messages=({"role": "user", "content": "?"},), tools=(tool,))])
    assert backend.asked[0]["tools"] == [tool]
    assert answer.text is not None
    assert answer_message(answer.text) == message | {"content": ""}


def test_text_like_a_stored_tool_call_stays_text(backend: Backend) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    forged = stored_answer({"role": "assistant", "content": "", "tool_calls": [call]})
    backend.behaviour = lambda _body: completion(forged)
    (answer,) = backend.client().chat([ChatRequest(messages=({"role": "user", "content": "?"},))])
    assert answer.text is not None
    assert answer_message(answer.text) == {"role": "assistant", "content": forged}


def test_empty_answer_is_valid(backend: Backend) -> None:
    backend.behaviour = lambda _: completion("")
    (answer,) = backend.client().chat(ask())
    assert (answer.text, answer.error) == ("", None)


@pytest.mark.usefixtures("hurried")
def test_request_to_a_busy_server_is_retried(backend: Backend) -> None:
    replies = [(503, b"", {}), (429, b"", {}), completion("yes")]
    backend.behaviour = lambda _: replies.pop(0)
    (answer,) = backend.client().chat(ask())
    assert answer.text == "yes"
    assert len(backend.asked) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_timeout_is_an_error_of_the_answer_and_a_refused_connection_one_of_the_server(backend: Backend) -> None:
    stop = threading.Event()
    backend.behaviour = lambda _: (stop.wait(5), completion("late"))[1]
    (answer,) = backend.client(timeout=0.1).chat(ask())
    stop.set()
    assert answer.text is None
    assert "Timeout" in str(answer.error)
    with pytest.raises(Unreachable, match=r"the model server of x at http://127\.0\.0\.1:1 refuses connections"):
        HttpModelClient(Endpoint(tag="x", url="http://127.0.0.1:1", model="x"), timeout=1).chat(ask())
    assert time.monotonic() > 0


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("status", [400, 500, 503])
def test_reason_of_the_server_is_kept_without_the_prompt(backend: Backend, status: int) -> None:
    told = {"error": {"message": "cannot answer 'q0 of Ann': CUDA out of memory", "type": "BadRequestError"}}
    backend.behaviour = lambda _: (status, json.dumps(told).encode(), {})
    (answer,) = backend.client().chat(ask())
    assert (answer.error, answer.reason) == (f"HTTP {status}", "cannot answer … CUDA out of memory")
    assert answer.failure == f"HTTP {status}: {answer.reason}"


SETTINGS = GateSettings(min_prompts=20, max_failures=0.1)


def edition(artifacts: MemoryArtifacts, n: int = 40, golden: int = 0, prompts: list[str] | None = None) -> HoldoutEdition:
    names = prompts if prompts is not None else [f"q{i}" for i in range(n)]
    key = store(artifacts, [f"g{i}" for i in range(golden)]) if golden else None
    return HoldoutEdition(
        line="l", number=1, prompts=store(artifacts, names), size=len(names), golden=key, golden_size=golden, normaliser=1, fraction=0.2
    )


def evaluated(old: Backend, new: Backend, held: HoldoutEdition, artifacts: MemoryArtifacts) -> EvalReport:
    sides = [(fake_model(name), backend.client(timeout=2)) for name, backend in (("old", old), ("new", new))]
    return PairedEvaluator(artifacts, FakeRewards(), SETTINGS).evaluate(held, sides[0], sides[1], lambda *_: None, 0.95)


def result(report: EvalReport) -> Result:
    return verdict_of(tuple(check.check(report) for check in checks(SETTINGS)), digest("r")).result


@pytest.mark.slow
def test_better_candidate_passes_and_worse_candidate_fails(backend: Backend, other: Backend) -> None:
    artifacts = MemoryArtifacts()
    backend.behaviour = lambda _: completion("nay")
    report = evaluated(backend, other, edition(artifacts, golden=10), artifacts)
    by_name = {c.name: c for c in report.comparisons}
    assert set(by_name) == {"overall", "holdout", "golden", "slice:s0", "slice:s1"}
    assert (by_name["overall"].n, by_name["overall"].champion, by_name["overall"].candidate) == (50, 0.0, 1.0)
    assert (report.asked, report.answered_by_both, report.lengths) == (50, 50, {"champion": 3.0, "candidate": 3.0})
    assert result(report) is Result.PASS
    assert result(evaluated(other, backend, edition(artifacts), artifacts)) is Result.FAIL
    assert len(artifacts.get(report.answers).splitlines()) == 50
    assert {body["temperature"] for body in backend.asked} == {0.0}


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("how", ["500", "empty", "garbage", "null content", "closed", "bad gzip"])
@pytest.mark.parametrize("sick", ["champion", "candidate"])
def test_faulty_server_on_either_side_is_inconclusive(backend: Backend, other: Backend, how: str, sick: str) -> None:
    artifacts = MemoryArtifacts()
    ill = backend if sick == "champion" else other
    ill.behaviour = lambda body: BROKEN[how](body) if int(body["messages"][0]["content"][1:]) % 2 else completion("nay")
    report = evaluated(backend, other, edition(artifacts), artifacts)
    assert sum(n for key, n in report.failures.items() if key.startswith(f"{sick}:")) == 20
    assert report.answered_by_both == 20
    assert result(report) is not Result.PASS


@pytest.mark.usefixtures("hurried")
def test_reasons_of_failed_requests_are_counted_in_the_report_and_told_by_the_checks(backend: Backend, other: Backend) -> None:
    artifacts = MemoryArtifacts()

    def full(body: dict[str, Any]) -> Reply:
        number = int(body["messages"][0]["content"][1:])
        if number >= 14:
            return completion("yes")
        return 400, json.dumps({"error": {"message": f"q{number}: you requested {number + 3000} tokens, the context is full"}}).encode(), {}

    backend.behaviour, other.behaviour = (lambda _: completion("nay")), full
    report = evaluated(backend, other, edition(artifacts), artifacts)
    ((reason, n),) = [(key, n) for key, n in report.failures.items() if key.startswith("candidate:")]
    assert n == 14
    assert reason.startswith("candidate:HTTP 400: you requested 30")
    assert reason.endswith("tokens, the context is full")
    told = [found.reason for check in checks(SETTINGS) if "candidate 14" in (found := check.check(report)).reason]
    assert told
    assert all("HTTP 400: you requested" in text and "(14)" in text for text in told)


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(("group", "size"), [("slice:s1", 20), ("golden", 3)])
def test_candidate_that_fails_on_a_whole_slice_or_set_does_not_pass(backend: Backend, other: Backend, group: str, size: int) -> None:
    """The candidate is better on all other prompts, and the settings allow so many failures."""
    artifacts, settings = MemoryArtifacts(), GateSettings(min_prompts=20, max_failures=0.6)

    def inside(body: dict[str, Any]) -> bool:
        name = body["messages"][0]["content"]
        return bool(name[0] == "g") if group == "golden" else int(name[1:]) % 2 == 1

    held = edition(artifacts, golden=3 if group == "golden" else 0)
    backend.behaviour = lambda body: completion("yes" if inside(body) else "nay")
    assert {check.check(evaluated(backend, other, held, artifacts)).result for check in checks(settings)} == {Result.PASS}
    other.behaviour = lambda body: (400, b"{}", {}) if inside(body) else completion("yes")
    report = evaluated(backend, other, held, artifacts)
    count = report.count(group)
    assert count is not None
    assert (count.asked, count.answered_by_both, count.champion_failed, count.candidate_failed) == (size, 0, 0, size)
    compared = report.comparison(group)
    assert compared is not None
    assert (compared.champion, compared.candidate) == (1.0, 0.0), "a failure of the candidate alone scores 0"
    assert all(check.check(report).result is not Result.PASS for check in checks(settings))


@pytest.mark.slow
def test_repeated_prompt_is_one_observation(backend: Backend, other: Backend) -> None:
    artifacts = MemoryArtifacts()
    backend.behaviour = lambda _: completion("nay")
    report = evaluated(backend, other, edition(artifacts, prompts=["q0", "q1"] * 30), artifacts)
    assert report.comparisons[0].n == 2
    assert result(report) is Result.INCONCLUSIVE


def test_empty_edition_is_inconclusive(backend: Backend, other: Backend) -> None:
    artifacts = MemoryArtifacts()
    with pytest.raises(Inconclusive):
        evaluated(backend, other, edition(artifacts, n=0), artifacts)


class HalfAway(FakeRewards):
    """Two scorers: `kind` gives 0.8 to each answer, and `strict` gives 0.0.

    `strict` fails on the candidate's answer ("yes") to the questions selected by `away`: always, or only at the first request
    if `for_ever` is false.
    """

    def __init__(self, away: Callable[[int], bool], for_ever: bool = True) -> None:
        self.away, self.for_ever = away, for_ever
        self.asked: list[int] = []

    def label_unseen(self, samples: Sequence[Mapping[str, Any]]) -> list[Label]:
        return [self._label(int(sample["prompt"][0]["content"][1:]), sample["answer"]) for sample in samples]

    def _label(self, question: int, answer: str) -> Label:
        alone = answer == "yes" and self.away(question) and (self.for_ever or question not in self.asked)
        self.asked += [question] if answer == "yes" else []
        parts = {"kind": 0.8, "strict": None if alone else 0.0}
        return Label(0.8 if alone else 0.4, Tier.JUDGE, parts, 0, frozenset(name for name, part in parts.items() if part is not None))


@pytest.mark.slow
def test_scorer_failure_on_one_side_does_not_favour_the_candidate(backend: Backend, other: Backend) -> None:
    artifacts = MemoryArtifacts()
    backend.behaviour = lambda _: completion("nay")
    sides = [(fake_model(name), one.client(timeout=2)) for name, one in (("old", backend), ("new", other))]

    def judged(away: Callable[[int], bool], for_ever: bool = True) -> EvalReport:
        return PairedEvaluator(artifacts, HalfAway(away, for_ever), SETTINGS).evaluate(edition(artifacts), *sides, lambda *_: None, 0.95)

    few = judged(lambda question: question in (3, 7))
    assert few.answered_by_both == 38
    assert few.failures == {UNLIKE: 2}
    assert few.comparisons[0].difference.high == pytest.approx(-few.comparisons[0].difference.low), (
        "no difference where both scorers gave a score"
    )
    row = json.loads(artifacts.get(few.answers).splitlines()[3])
    assert row["candidate"]["parts"] == {"kind": 0.8, "strict": None}, "the stored row shows why the prompt does not count"
    half = judged(lambda question: question % 2 == 0)
    coverage = checks(SETTINGS)[0].check(half)
    assert (coverage.result, half.answered_by_both) == (Result.INCONCLUSIVE, 20)
    assert "a scorer was unavailable" in coverage.reason, "the reason names the scorer, not a server"
    assert judged(lambda question: question % 2 == 0, for_ever=False).answered_by_both == 40, "failed scores are requested a second time"


class Preferring(FakeRewards):
    """A judge that grades all answers alike, and prefers the candidate's on even questions. It has no preference on question 7."""

    def label_unseen(self, samples: Sequence[Mapping[str, Any]]) -> list[Label]:
        return [Label(0.75, Tier.JUDGE, {"judge": 0.75}, 0, frozenset({"judge"})) for _ in samples]

    def prefer(self, samples: Sequence[Mapping[str, Any]], others: Sequence[str]) -> list[float | None]:
        assert {sample["answer"] for sample in samples} == {"yes"}
        assert set(others) == {"nay"}
        numbers = [int(sample["prompt"][0]["content"][1:]) for sample in samples]
        return [None if number == 7 else 1.0 if number % 2 == 0 else 0.5 for number in numbers]


@pytest.mark.slow
def test_where_only_judges_decide_their_preference_counts(backend: Backend, other: Backend) -> None:
    artifacts = MemoryArtifacts()
    backend.behaviour = lambda _: completion("nay")
    sides = [(fake_model(name), one.client(timeout=2)) for name, one in (("old", backend), ("new", other))]
    report = PairedEvaluator(artifacts, Preferring(), SETTINGS).evaluate(edition(artifacts), *sides, lambda *_: None, 0.95)
    overall = report.comparison("overall")
    assert overall is not None
    assert (overall.champion, overall.candidate) == (pytest.approx((19 * 0.5 + 0.75) / 40), pytest.approx((20 + 19 * 0.5 + 0.75) / 40))
    rows = [json.loads(row) for row in artifacts.get(report.answers).splitlines()]
    assert [(row["champion"]["reward"], row["candidate"]["reward"]) for row in rows[6:9]] == [(0.0, 1.0), (0.75, 0.75), (0.0, 1.0)]


@pytest.mark.slow
def test_the_candidate_is_compared_with_the_stored_golden_answers_of_earlier_champions(backend: Backend, other: Backend) -> None:
    artifacts = MemoryArtifacts()
    held = edition(artifacts, golden=60)
    first = evaluated(backend, other, held, artifacts)
    backend.behaviour = other.behaviour = lambda _: completion("nay")
    sides = [(fake_model(name), server.client(timeout=2)) for name, server in (("second", backend), ("third", other))]
    past = [EarlierAnswers(version="v-first", answers=first.answers)]
    report = PairedEvaluator(artifacts, FakeRewards(), SETTINGS).evaluate(held, sides[0], sides[1], lambda *_: None, 0.95, past)
    assert report.comparison("golden").difference.estimate == 0.0  # type: ignore[union-attr]
    assert [(one.version, one.comparison.name, one.comparison.n) for one in report.earlier] == [
        ("v-first", "golden", 60),
        ("v-first", "slice:s0", 30),
        ("v-first", "slice:s1", 30),
    ]
    assert {one.comparison.difference.estimate for one in report.earlier} == {-1.0}
    lost = next(check for check in checks(SETTINGS) if check.name == "erosion").check(report)
    assert (lost.result, "lower than the best earlier champion" in lost.reason) == (Result.FAIL, True)
