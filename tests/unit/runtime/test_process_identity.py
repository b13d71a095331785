"""Tests that the identity of a process is constant and unique, and ends with the process."""

from __future__ import annotations

import os
import subprocess
import sys

from ratchet.runtime.process_identity import is_running, process_identity, same_boot


def test_identity_of_a_process_is_constant_until_it_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        first = process_identity(child.pid)
        assert first is not None
        assert process_identity(child.pid) == first
        assert process_identity(os.getpid()) != first
        assert is_running(child.pid, first)
        assert not is_running(os.getpid(), first)
        child.kill()
    assert process_identity(child.pid) is None
    assert not is_running(child.pid, first)


def test_identity_starts_with_the_boot_id() -> None:
    mine = process_identity(os.getpid())
    assert mine is not None
    with open("/proc/sys/kernel/random/boot_id") as boot:  # noqa: PTH123
        assert mine.startswith(boot.read().strip() + "-")
    assert same_boot(mine, f"{mine}0")
    assert not same_boot(mine, f"x{mine}")
