"""The external programs, rights and data that some tests need, and how a test skips when one of them is missing.

A skip always starts with the text of one `Need`. `tests/conftest.py` counts the skips by need, prints the command that installs the
missing part, and fails the run when a test skips for any other reason.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

import pytest


class Need(StrEnum):
    """Something a test needs that a bare machine lacks. The value is the first part of the reason for skipping."""

    GO = "no Go"
    ROOT = "no root"
    CONTAINERD = "no containerd"
    POSTGRES = "no Postgres"
    CHROMIUM = "no Chromium"
    HAPROXY = "no HAProxy"
    CURL = "no curl"
    GPU = "no GPU"
    NEMO_RL = "no NeMo RL release"
    VLLM = "no vLLM"
    LM_EVAL = "no lm-eval"
    REST_CATALOG = "no REST catalog"
    NAMESPACES = "no namespaces"
    SHARED = "no RATCHET_SHARED"


REMEDIES = {
    Need.GO: "make tools",
    Need.ROOT: "run as root",
    Need.CONTAINERD: "make tools (as root; the machine also needs control groups version 1)",
    Need.POSTGRES: "make tools (as root)",
    Need.CHROMIUM: "make tools (as root)",
    Need.HAPROXY: "make tools (as root)",
    Need.CURL: "make tools (as root)",
    Need.GPU: "run on a machine with an NVIDIA GPU",
    Need.NEMO_RL: "docs/nemo_rl.md says how to provide a NeMo RL release",
    Need.VLLM: "make vllm (installs 6 GB into .venv-vllm and runs these tests)",
    Need.LM_EVAL: "make lmeval (installs 700 MB into .venv-lmeval and runs these tests)",
    Need.REST_CATALOG: "make rest-catalog (needs Java and Maven; downloads 140 MB into .rest-catalog and runs these tests)",
    Need.NAMESPACES: "run as root, or allow user namespaces",
    Need.SHARED: "set RATCHET_SHARED to the folder that contains data/gsm8k_traces",
}
"""How to provide each need."""

NOT_IN_CI = (Need.GPU, Need.NEMO_RL, Need.VLLM, Need.LM_EVAL, Need.REST_CATALOG)
"""Needs that CI may lack. A test that lacks any other need fails in CI."""


def in_ci() -> bool:
    """Whether the tests run in CI (`CI=true`)."""
    return os.environ.get("CI") == "true"


def lacks(need: Need, detail: str = "") -> NoReturn:
    """Skips the running test because `need` is missing; fails it in CI where CI must provide the need.

    Args:
        need: The missing need.
        detail: What exactly is missing, for the reason.
    """
    reason = f"{need}: {detail}" if detail else str(need)
    if in_ci() and need not in NOT_IN_CI:
        pytest.fail(f"CI must run this test: {reason}")
    pytest.skip(reason)


def need_of(reason: str) -> Need | None:
    """Returns the need that a reason for skipping names, or None where it names none."""
    return next((need for need in Need if reason == need or reason.startswith(f"{need}: ")), None)


def shared_data(*parts: str) -> Path:
    """Returns a path below the shared data folder (`RATCHET_SHARED`, default `../shared`); skips the test where it is absent."""
    folder = Path(os.environ.get("RATCHET_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    path = folder.resolve().joinpath("data", *parts)
    if not path.exists():
        lacks(Need.SHARED, f"{'/'.join(parts)} is not in the shared data folder")
    return path
