"""Makes the environments of the harness: `python -m tests.harness.environments FOLDER LOCK ...`, one for each lock, and one of node.

With `--newest` before FOLDER, that of node gets the newest releases of the AI SDK instead of the locked ones.

An environment whose installation fails is removed. Its file `FOLDER/<name>.failed` has the reason, which the harness reports.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NODE = Path(__file__).resolve().parent / "programs" / "node"


def name_of(lock: Path) -> str:
    """Return the name of the environment of a lock: `other` for `harness_other.lock`."""
    return lock.stem.partition("_")[2] or "python"


def make(folder: Path, locks: Sequence[Path], newest: bool = False) -> None:
    """Make all environments below `folder`. With `newest`, node gets the newest releases of the AI SDK."""
    folder.mkdir(parents=True, exist_ok=True)
    uv = str(Path(sys.executable).with_name("uv"))
    for lock in locks:
        target = folder / name_of(lock)
        python = str(target / "bin" / "python")
        create = [uv, "venv", "-q", "--clear", "--python", sys.executable, str(target)]
        install = [uv, "pip", "install", "-q", "--compile-bytecode", "--python", python, "--require-hashes", "-r", str(lock)]
        _install(target, create, install)
    if shutil.which("npm") is not None:
        target = folder / "node"
        target.mkdir(exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(NODE / name, target / name)
        quiet = ["--prefix", str(target), "--no-audit", "--no-fund", "--loglevel=error"]
        names = [one for one in json.loads((NODE / "package.json").read_text())["dependencies"] if not one.startswith("@opentelemetry/")]
        latest = [["npm", "install", *quiet, *(f"{name}@latest" for name in names)]] if newest else []
        _install(target, ["npm", "ci", *quiet], *latest)


def _install(target: Path, *commands: list[str]) -> None:
    failed = target.with_name(f"{target.name}.failed")
    failed.unlink(missing_ok=True)
    for command in commands:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            failed.write_text((ran.stderr or ran.stdout)[-2000:])
            shutil.rmtree(target, ignore_errors=True)
            print(f"{target} could not be installed; the harness leaves its libraries out:\n{failed.read_text()}", file=sys.stderr)
            return


if __name__ == "__main__":
    given = [one for one in sys.argv[1:] if one != "--newest"]
    make(Path(given[0]), [Path(lock) for lock in given[1:]], "--newest" in sys.argv)
