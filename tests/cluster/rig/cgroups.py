"""The control groups (version 1) of a real node: one group with the node's name in every hierarchy."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.rig.api import until

ROOT = Path("/sys/fs/cgroup")


def available() -> bool:
    """Return whether the machine has control groups of version 1."""
    return (ROOT / "cpuset" / "cpuset.cpus").exists() and (ROOT / "memory").is_dir()


def make(name: str) -> None:
    """Create a group in every hierarchy.

    A new cpuset is empty and accepts no process until it has processors and memory nodes, so this function copies those of the root.
    """
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir(exist_ok=True)
    for file in ("cpuset.cpus", "cpuset.mems"):
        (ROOT / "cpuset" / name / file).write_text((ROOT / "cpuset" / file).read_text())


def remove(name: str) -> None:
    """Remove a group from every hierarchy; waits until the kernel has released its last process."""
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
    """Return the existing groups whose name begins with `name`."""
    return [path for hierarchy in _hierarchies() for path in hierarchy.glob(f"{name}*") if path.is_dir()]


def _hierarchies() -> list[Path]:
    """Return the folder of each hierarchy once, without symbolic links to it."""
    return [path for path in ROOT.iterdir() if path.is_dir() and not path.is_symlink()] if ROOT.is_dir() else []
