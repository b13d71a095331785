"""The tests in a reference: as cases, whose expected results never enter the sandbox, or as Python code."""

from __future__ import annotations

import ast
import json
import math
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from ratchet.contracts.model import Frozen
from ratchet.rewards.code.sandbox import End, Run


class Call(Frozen):
    """A call of a function of the answer, and its result. Values are JSON."""

    call: str
    """Name of the function."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = Field(default_factory=dict)
    returns: Any
    """Expected result. Numbers with a fraction may differ in the ninth digit. A tuple counts as a list."""


class Program(Frozen):
    """A run of the answer as a program. Spaces at the ends of lines, and empty lines at the end, are ignored."""

    stdin: str = ""
    stdout: str
    """Expected output."""


class Trial(Frozen):
    """One program for the sandbox, and the decision whether it did what is expected."""

    script: str
    stdin: str
    passed: Callable[[Run], bool]


_CASES: TypeAdapter[list[Call] | list[Program]] = TypeAdapter(list[Call] | list[Program])

_CALLS = """
import json, os
space = {"__name__": "answer"}
write, dumps, calls = os.write, json.dumps, json.loads(CALLS)
exec(compile(ANSWER, "answer", "exec"), space)
for call in calls:
    write(3, dumps(space[call["call"]](*call["args"], **call["kwargs"])).encode() + b"\\n")
"""
_TESTS = """
import os
space, write, tests, token = {"__name__": "answer"}, os.write, TESTS, TOKEN
del TESTS, TOKEN
exec(compile(ANSWER, "answer", "exec"), space)
exec(compile(tests, "tests", "exec"), space)
write(3, token)
"""


def trials(reference: str, answer: str) -> list[Trial] | None:
    """Return the programs that test the code of an answer; None if the reference contains no tests."""
    cases = _cases(reference)
    if cases is None:
        return [_with_tests(reference, answer)] if _has_tests(reference) else None
    calls, programs = [one for one in cases if isinstance(one, Call)], [one for one in cases if isinstance(one, Program)]
    return [*([_with_calls(calls, answer)] if calls else []), *(_as_program(one, answer) for one in programs)] or None


def _cases(reference: str) -> list[Call] | list[Program] | None:
    try:
        return _CASES.validate_json(reference)
    except ValidationError:
        return None


def _has_tests(reference: str) -> bool:
    """Return whether the reference is Python code that can fail. Any other text would accept each answer."""
    try:
        nodes = ast.walk(ast.parse(reference))
        return any(isinstance(node, ast.Assert | ast.Raise) for node in nodes)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _with_calls(calls: list[Call], answer: str) -> Trial:
    given = json.dumps([{"call": one.call, "args": one.args, "kwargs": one.kwargs} for one in calls])
    script = f"ANSWER = {answer!r}\nCALLS = {given!r}\n{_CALLS}"

    def passed(run: Run) -> bool:
        found = list(_lines(run.results))
        return run.end is End.EXITED and len(found) == len(calls) and all(map(_same, found, (one.returns for one in calls)))

    return Trial(script=script, stdin="", passed=passed)


def _lines(results: bytes) -> Iterator[Any]:
    for line in results.splitlines():
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            yield object()  # equal to nothing


def _same(found: Any, expected: Any) -> bool:
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(found, int | float) and isinstance(expected, int | float):
        return found == expected or (math.isfinite(expected) and math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12))
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(_same, found, expected))
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_same(found[key], expected[key]) for key in expected)
    return bool(type(found) is type(expected) and found == expected)


def _as_program(case: Program, answer: str) -> Trial:
    def passed(run: Run) -> bool:
        return run.end is End.EXITED and run.status == 0 and _plain(run.output.decode(errors="replace")) == _plain(case.stdout)

    return Trial(script=answer, stdin=case.stdin, passed=passed)


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip()


def _with_tests(tests: str, answer: str) -> Trial:
    token = secrets.token_hex(16).encode()
    script = f"ANSWER = {answer!r}\nTESTS = {tests!r}\nTOKEN = {token!r}\n{_TESTS}"
    return Trial(script=script, stdin="", passed=lambda run: run.end is End.EXITED and run.results == token)
