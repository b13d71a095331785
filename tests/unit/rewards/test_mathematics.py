"""Tests of the scorer `math`, and of the process with limits in which it runs."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from ratchet.rewards.bounded.worker import NoResult, Worker, worker
from ratchet.rewards.mathematics import Math


def _math(answer: str, reference: str | None) -> float | None:
    return Math().score([{"answer": answer, "reference": reference}])[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [
        ("so 4", "4", 1.0),
        ("so 5", "4", 0.0),
        ("it is $0.5$", r"\frac{1}{2}", 1.0),
        ("it is 1234.", "1,234", 1.0),
        (r"\boxed{(x+1)^2}", "$x^2+2x+1$", 1.0),
        (r"$\{2, 1\}$", r"$\{1, 2\}$", 1.0),
        ("no number", "4", 0.0),
        ("4", "no number", None),
        ("4", None, None),
    ],
)
def test_math_compares_values(answer: str, reference: str | None, score: float | None) -> None:
    assert _math(answer, reference) == score


def test_math_also_runs_in_a_thread() -> None:
    scores: list[float | None] = []
    thread = threading.Thread(target=lambda: scores.append(_math("so 4", "4")))
    thread.start()
    thread.join(60)
    assert scores == [1.0]


@pytest.mark.slow
def test_an_answer_that_takes_too_long_gets_no_score_and_does_not_disturb_the_next() -> None:
    scorer = Math(timeout=0.5)
    samples = [{"answer": "$9^{9^{9^{9}}}$", "reference": "4"}, {"answer": "4", "reference": "4"}]
    assert scorer.score(samples) == [None, 1.0]


def test_a_worker_starts_again_after_its_death() -> None:
    one = Worker("regex")
    assert one.call(1.0, pattern="a", text="a", whole=True) is True
    assert one._process is not None
    os.kill(one._process.pid, signal.SIGKILL)
    one._process.wait()
    assert one.call(1.0, pattern="a", text="b", whole=True) is False


def test_a_worker_names_the_error_without_the_text() -> None:
    with pytest.raises(NoResult, match=r"^regex: PatternError$|^regex: error$"):
        worker("regex").call(1.0, pattern="(", text="private", whole=True)


def test_the_process_gets_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    one = Worker("regex")
    one.call(1.0, pattern="a", text="a", whole=True)
    assert one._process is not None
    with open(f"/proc/{one._process.pid}/environ", "rb") as environment:  # noqa: PTH123
        assert b"AWS_SECRET" not in environment.read()
