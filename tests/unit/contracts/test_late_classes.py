"""Tests that control types, which are built at their first use, can first be used by several threads at the same time."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from ratchet.contracts.loop import Loop
from ratchet.contracts.serving import ModelVersion
gate = Barrier(16)
model = {name: "0" * 64 for name in ("weights", "tokenizer", "chat_template", "generation_config", "others", "files")}
version = {"line": "a", "number": 0, "tag": "v-1", "model": model, "cycle": None}
loop = {"line": {"name": "a", "served_model": "a"}, "sources": [{"name": "r", "kind": "receiver"}], "rewards": [{"name": "exact_match"}]}
def use(number):
    gate.wait()
    return ModelVersion.model_validate(version).tag if number % 2 else Loop.model_validate(loop).line.name
with ThreadPoolExecutor(16) as pool:
    print(sorted(set(pool.map(use, range(16)))))
"""


@pytest.mark.slow
def test_threads_may_use_a_class_for_the_first_time_together() -> None:
    for _ in range(3):
        ran = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False, timeout=60)
        assert ran.stdout == "['a', 'v-1']\n", ran.stderr[-2000:]
