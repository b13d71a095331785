"""Child process of `rewards/bounded/worker.py`: evaluates one request per line of standard input, within limits.

It runs as a script and imports nothing of Ratchet, so that it starts in milliseconds. A time limit is a timer of the process. Its handler
runs in the main thread and also ends a regular expression that backtracks without end. For that reason this is a process: in a thread of
the service, no such timer exists.
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn

MEMORY = 2 << 30
"""Bytes of data that the process may allocate."""
IDLE = 60.0
"""Seconds without a request after which the process ends. The next request starts a new one."""


class Late(BaseException):
    """The time limit of a request is reached. Not an `Exception`, so that no library takes it for an error of its own."""


def _late(_signal: int, _frame: object) -> NoReturn:
    raise Late


@lru_cache(maxsize=64)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def matches(pattern: str, text: str, whole: bool) -> bool:
    """Return whether the regular expression matches the text: all of it, or a part of it."""
    compiled = _pattern(pattern)
    return (compiled.fullmatch if whole else compiled.search)(text) is not None


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    from jsonschema.validators import validator_for
    from referencing import Registry

    parsed = json.loads(schema)
    return validator_for(parsed)(parsed, registry=Registry())  # an empty registry fetches nothing from the network


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def is_valid(schema: str, text: str) -> bool:
    """Return whether the text is one JSON value that the JSON schema accepts."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    try:
        return bool(_validator(schema).is_valid(value))
    except RecursionError:
        return False


_COMMAND = re.compile(r"\\[a-zA-Z]+")
_WORD = re.compile(r"[^\W\d_]{3,}")


@lru_cache(maxsize=256)
def _expressions(text: str) -> list[Any]:
    from math_verify import parse

    return list(parse(text, parsing_timeout=0))


def is_equal(reference: str, answer: str) -> bool | None:
    """Return whether the last mathematical expression of the answer equals the reference; None if the reference is not one."""
    from math_verify import verify

    expected = _expressions(reference)
    if not expected and not _WORD.search(_COMMAND.sub("", reference)):
        expected = _expressions(f"${reference}$")  # a formula without dollar signs
    return bool(verify(expected, _expressions(answer), timeout_seconds=0)) if expected else None


FUNCTIONS: dict[str, Callable[..., bool | None]] = {"regex": matches, "json_schema": is_valid, "math": is_equal}
"""Name of a request -> the function that evaluates it."""


def _evaluate(request: dict[str, Any]) -> dict[str, Any]:
    try:
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        try:
            return {"value": FUNCTIONS[request["function"]](**request["arguments"])}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except Late:
        return {"error": "late"}
    except Exception as error:  # also MemoryError; the message may quote a user
        return {"error": type(error).__name__}


def main() -> None:
    """Answer requests until the parent closes the pipe or is idle."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGPROF, _late)
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # a library that prints must not write into the replies
    requests = os.fdopen(0, "rb", buffering=0)
    buffer = b""
    while select.select([requests], [], [], IDLE)[0]:
        chunk = os.read(0, 1 << 16)
        if not chunk:
            return
        buffer += chunk
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            reply = json.dumps(_evaluate(json.loads(line))).encode() + b"\n"
            replies.write(reply)


if __name__ == "__main__":
    sys.setrecursionlimit(2000)
    main()
