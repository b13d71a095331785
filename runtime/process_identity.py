"""Unique identity of a process on this machine, across process ids that are reused and across reboots."""

from __future__ import annotations

from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def is_running(pid: int, identity: str) -> bool:
    """Return whether the process that had this identity still exists. A zombie exists."""
    return process_identity(pid) == identity


def same_boot(identity: str, other: str) -> bool:
    """Return whether two process identities are from the same boot of a machine."""
    return identity.rpartition("-")[0] == other.rpartition("-")[0]


def boot_id() -> str:
    """Return the id of the machine's boot; empty text without /proc."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def process_identity(pid: int) -> str | None:
    """Return `<boot id>-<start time in clock ticks since boot>` of a live process.

    Returns None if the process does not exist or the system has no /proc. Unlike a start time in seconds, the value does not change when
    the clock is adjusted, and it is different after a reboot. Source: proc_pid_stat(5), field 22.
    """
    try:
        boot = _BOOT.read_text().strip()
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return f"{boot}-{int(stat[stat.rindex(')') + 1 :].split()[19])}"
    except (OSError, ValueError, IndexError):
        return None
