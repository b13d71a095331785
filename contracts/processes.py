"""What tells one process of this machine from every other one, for ever. It looks; it starts, stops and waits for nothing."""

from __future__ import annotations

from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def process_identity(pid: int) -> str | None:
    """`<boot id>-<start, in clock ticks since that boot>` of a live process; None where it is gone, or the system has no /proc.

    Unlike a start time in seconds it does not move when the clock is set, and no process of another boot can have it.
    Source: proc_pid_stat(5), field 22.
    """
    try:
        boot = _BOOT.read_text().strip()
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return f"{boot}-{int(stat[stat.rindex(')') + 1 :].split()[19])}"
    except (OSError, ValueError, IndexError):
        return None
