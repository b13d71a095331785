"""Tests of the sandbox in a process that has many open files, or a strict umask."""

from __future__ import annotations

import os

import pytest

from ratchet.rewards.code.sandbox import End, Limits, Unavailable, run_program, unavailable
from tests.needs import Need, lacks


@pytest.mark.parametrize("opened", [0, 8, 11, 12, 13, 14, 15, 16, 17, 40])
def test_results_arrive_whatever_number_their_descriptor_has(opened: int) -> None:
    if reason := unavailable("namespaces"):
        lacks(Need.NAMESPACES, reason)
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(opened)]
    try:
        run = run_program("import os; os.write(3, input().encode())", "yes\n", Limits(), "namespaces")
    finally:
        for file in files:
            os.close(file)
    assert (run.end, run.status, run.results) == (End.EXITED, 0, b"yes")


def test_programs_start_if_the_service_creates_private_files_only() -> None:
    before = os.umask(0o077)
    try:
        run = run_program("import os; os.write(3, b'yes')", "", Limits(), "namespaces")
    except Unavailable as error:
        os.umask(before)
        if reason := unavailable("namespaces"):
            lacks(Need.NAMESPACES, reason)
        raise AssertionError from error
    finally:
        os.umask(before)
    assert run.results == b"yes"
