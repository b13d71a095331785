"""A real node's place in the machine's control groups (version 1): one group of its name in every hierarchy."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.rig.api import until

ROOT = Path("/sys/fs/cgroup")


def available() -> bool:
    return (ROOT / "cpuset" / "cpuset.cpus").exists() and (ROOT / "memory").is_dir()


def make(name: str) -> None:
    """A cpuset starts empty and takes no process before it is given processors and memory."""
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir(exist_ok=True)
    for file in ("cpuset.cpus", "cpuset.mems"):
        (ROOT / "cpuset" / name / file).write_text((ROOT / "cpuset" / file).read_text())


def remove(name: str) -> None:
    """A group can go only when the kernel has buried its last process, and that may take a moment."""
    until(lambda: not _remaining(name), 15, f"the end of control group {name}", lambda: "\n".join(map(str, _remaining(name))))


def _remaining(name: str) -> list[Path]:
    left = []
    for top in (hierarchy / name for hierarchy in _hierarchies()):
        for group in sorted((path for path in [top, *top.rglob("*")] if path.is_dir()), key=lambda p: -len(p.parts)):
            try:
                group.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                left.append(group)
    return left


def groups(name: str) -> list[Path]:
    """Those that exist whose name begins so."""
    return [path for hierarchy in _hierarchies() for path in hierarchy.glob(f"{name}*") if path.is_dir()]


def _hierarchies() -> list[Path]:
    """Some are reachable under two names by links; each is listed once."""
    return [path for path in ROOT.iterdir() if path.is_dir() and not path.is_symlink()] if ROOT.is_dir() else []
