"""A process is the same one as long as it lives, and no other one ever is."""

from __future__ import annotations

import os
import subprocess
import sys

from runtime.process_identity import process_identity


def test_a_process_keeps_its_identity_and_loses_it_with_its_life() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        first = process_identity(child.pid)
        assert first is not None
        assert process_identity(child.pid) == first
        assert process_identity(os.getpid()) != first
        child.kill()
    assert process_identity(child.pid) is None


def test_it_names_the_boot() -> None:
    mine = process_identity(os.getpid())
    assert mine is not None
    with open("/proc/sys/kernel/random/boot_id") as boot:  # noqa: PTH123
        assert mine.startswith(boot.read().strip() + "-")
