"""A real file system that is soon full, for tests of a full disk."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.needs import Need, lacks


@contextmanager
def small_volume(folder: Path, kilobytes: int = 2048) -> Iterator[Path]:
    """Mount a new file system of `kilobytes` at `folder`, which is created. Skips the test without the right to mount."""
    folder.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        lacks(Need.ROOT, f"no file system can be mounted: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Use all room of the volume of `folder`."""
    try:
        with (folder / "filler").open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
    except OSError:
        return
