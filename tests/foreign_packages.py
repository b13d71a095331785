"""A user's own packages that have the names of Ratchet's folders."""

from __future__ import annotations

from pathlib import Path

NAMES = ("contracts", "runtime", "rewards", "materializer", "trainers", "gates", "k8s", "local", "flows", "router", "tests", "benchmarks")


def foreign_packages(folder: Path) -> Path:
    """Create packages in `folder` that raise an error when they are imported, and return the folder."""
    for name in NAMES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise ImportError('the user\\'s own package {name} was imported')\n")
    return folder
