"""Tests of the scorer `code`: which code runs, and what counts as passed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.rewards.code import reward
from ratchet.rewards.code.reward import Code, code_of
from ratchet.rewards.code.sandbox import Unavailable, unavailable
from tests.needs import Need, lacks

ADD = "```python\ndef add(a, b):\n    return a + b\n```"
CALLS = json.dumps([{"call": "add", "args": [1, 2], "returns": 3}, {"call": "add", "args": [0.1, 0.2], "returns": 0.3}])
PROGRAM = json.dumps([{"stdin": "2 3\n", "stdout": "5\n"}, {"stdin": "1 1\n", "stdout": "2"}])
ASSERTS = "assert add(1, 2) == 3\nassert add(b=1, a=1) == 2"


@pytest.fixture(autouse=True)
def _needs_namespaces() -> None:
    if reason := unavailable("namespaces"):
        lacks(Need.NAMESPACES, reason)


def _score(answer: str, reference: str | None, **options: Any) -> float | None:
    return Code(**options).score([{"answer": answer, "reference": reference}])[0]


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [
        (f"Here:\n{ADD}\nUse it well.", CALLS, 1.0),
        ("def add(a, b): return a - b", CALLS, 0.0),
        ("def add(a, b): return a, b", '[{"call": "add", "args": [1, 2], "returns": [1, 2]}]', 1.0),
        ("def add(a, b): return True", '[{"call": "add", "args": [1, 0], "returns": 1}]', 0.0),
        ("def sub(a, b): return a - b", CALLS, 0.0),
        (ADD, ASSERTS, 1.0),
        ("def add(a, b): return 3", ASSERTS, 0.0),
        ("print(sum(map(int, input().split())))", PROGRAM, 1.0),
        ("print(5)", PROGRAM, 0.0),
        ("this is no code", CALLS, 0.0),
        ("", ASSERTS, 0.0),
    ],
)
def test_an_answer_passes_if_its_code_does_what_the_tests_expect(answer: str, reference: str, score: float) -> None:
    assert _score(answer, reference) == score


@pytest.mark.parametrize("reference", [None, "42", "print('no test')", "not python", "[]", '[{"call": "f"}]', '[{"stdout": 1}]'])
def test_a_reference_without_tests_gives_no_score(reference: str | None) -> None:
    assert _score(ADD, reference) is None


@pytest.mark.parametrize(
    "answer",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "import os; os.write(3, b'3\\n0.3\\n3\\n')",
        "class Any:\n    def __eq__(self, other): return True\ndef add(*a): return Any()",
        "import json; json.dumps = lambda value: '3'\ndef add(*a): return 1",
        "import builtins, atexit, os; atexit.register(os._exit, 0); raise SystemExit",
    ],
)
def test_an_answer_cannot_pass_without_the_results(answer: str) -> None:
    assert _score(answer, CALLS) == 0.0


def test_an_exit_before_the_tests_is_no_success() -> None:
    answers = ["import sys; sys.exit(0)", "import os; os._exit(0)", "TOKEN = b''", "import os; os.write(3, b'')"]
    assert Code().score([{"answer": answer, "reference": ASSERTS} for answer in answers]) == [0.0] * 4


def test_the_code_of_an_answer() -> None:
    assert code_of("```bash\npip install x\n```\n```py\na\n```\nthen\n```python\nb\n```") == "a\nb"
    assert code_of("```\na\n```") == "a"
    assert code_of("a = 1") == "a = 1"


def test_a_machine_without_isolation_refuses_the_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward, "unavailable", lambda isolation: "namespaces: Operation not permitted")
    with pytest.raises(ConfigError, match=r'Operation not permitted; .* accept less with options = \{ isolation = "process" \}'):
        Code()


def test_a_failure_of_the_sandbox_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise Unavailable("no memory")

    scorer = Code()
    monkeypatch.setattr(reward, "run_program", fail)
    assert scorer.score([{"answer": ADD, "reference": CALLS}]) == [None]
