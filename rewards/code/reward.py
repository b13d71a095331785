"""Scorer that runs the Python code of an answer against the tests of its reference."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import Field

from ratchet.contracts.data.records import Tier
from ratchet.contracts.errors import ConfigError
from ratchet.contracts.model import Frozen
from ratchet.rewards.code.reference_tests import trials
from ratchet.rewards.code.sandbox import Isolation, Limits, Unavailable, run_program, unavailable
from ratchet.rewards.code_blocks import code_blocks
from ratchet.rewards.options import check_options

log = logging.getLogger(__name__)

_PYTHON = ("python", "python3", "py")


class CodeOptions(Frozen):
    """Options of the scorer `Code`."""

    timeout: float = Field(default=5.0, gt=0, le=300)
    """Maximum CPU time per test case in seconds. The wall-clock time may be four times as long, and five seconds."""
    memory_mb: int = Field(default=512, ge=64, le=65_536)
    """Maximum address space of the program in MiB."""
    output_kb: int = Field(default=1024, ge=1, le=65_536)
    """Maximum output of the program in KiB. A program that writes more is killed."""
    parallel: int = Field(default=0, ge=0, le=256)
    """Number of programs at the same time. 0: half of the processor's cores."""
    isolation: Isolation = "namespaces"
    """namespaces: no network, no file of this machine but the libraries, no other process. process: only limits on time, memory and output,
    so the code of an answer can use the network and read the files of the user of the service. Select it only where something else
    isolates the service."""


class Code:
    """Score 1 if the Python code of an answer passes the tests in the reference, otherwise 0.

    The code is that of the answer's code blocks in Python, or of its other blocks, or the whole answer. It may use the standard library,
    but start no process and no thread. Exceeding a limit is a failure. Abstain without tests in the reference, or if the sandbox fails.
    Linux only.
    """

    name = "code"
    tier = Tier.VERIFIABLE
    needs = frozenset({"answer", "reference"})

    def __init__(self, **options: Any) -> None:
        self.options = check_options(self.name, CodeOptions, options)
        self._limits = Limits(seconds=self.options.timeout, memory=self.options.memory_mb << 20, output=self.options.output_kb << 10)
        if reason := unavailable(self.options.isolation):
            raise ConfigError(f"reward 'code' cannot isolate programs on this machine: {reason}; {_remedy(self.options.isolation)}")

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Run the code of each answer."""
        width = self.options.parallel or max(1, (os.cpu_count() or 2) // 2)
        with ThreadPoolExecutor(width, thread_name_prefix="code") as pool:
            return list(pool.map(self._score, samples))

    def _score(self, sample: Mapping[str, Any]) -> float | None:
        answer, reference = sample.get("answer"), sample.get("reference")
        tests = None if answer is None or reference is None else trials(reference, code_of(answer))
        if tests is None:
            return None
        try:
            runs = ((test, run_program(test.script, test.stdin, self._limits, self.options.isolation)) for test in tests)
            return float(all(test.passed(run) for test, run in runs))
        except (Unavailable, OSError) as error:
            log.warning("reward code gives no score: %s", error)
            return None


def code_of(answer: str) -> str:
    """Return the code of an answer: its blocks in Python, otherwise all its blocks, otherwise the whole text."""
    blocks = code_blocks(answer)
    python = [block.text for block in blocks if block.language in _PYTHON]
    return "\n".join(python or [block.text for block in blocks] or [answer])


def _remedy(isolation: Isolation) -> str:
    if isolation == "process":
        return "remove the reward, or run it on Linux with Python in a folder that other users may read"
    return (
        "allow user namespaces, or run the service as root; if something else isolates it, accept less with "
        'options = { isolation = "process" }'
    )
