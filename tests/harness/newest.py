"""Compares the pinned releases of the harness's libraries with the newest of the configured index: `python -m tests.harness.newest FOLDER`.

The locks of the newest releases within the limits of pyproject.toml are written to FOLDER. The newest without limits is shown beside them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.harness.environments import NODE
from tests.harness.libraries import LIBRARIES, ROOT

LOCKS = {"harness": "harness.lock", "harness-other": "harness_other.lock", "harness-frameworks": "harness_frameworks.lock"}
"""Dependency group -> its lock in `requirements`."""
_OPTIONS = ("--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--no-header")
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)
SECONDS = 300


class NoIndexError(Exception):
    """The index does not answer, so that nothing is known of newer releases."""


@dataclass(frozen=True)
class Release:
    """The releases of one package."""

    package: str
    pinned: str
    allowed: str
    """The newest within the limits of pyproject.toml."""
    newest: str

    @property
    def is_newest(self) -> bool:
        """Whether the pinned release is the newest of all."""
        return self.pinned == self.newest


def pins(text: str) -> dict[str, str]:
    """Return package -> version of a lock file. Of a package with several versions, the last one."""
    return {name.lower(): version for name, version in _PINNED.findall(text)}


def packages(node: bool = False) -> list[str]:
    """Return the packages whose versions the results name: those of Python, or those of node."""
    return sorted({name for one in LIBRARIES if (one.environment == "node") == node for name in one.packages})


def compile_newest(folder: Path) -> None:
    """Write the locks with the newest releases within the limits to `folder`. Raises NoIndexError if the index does not answer."""
    folder.mkdir(parents=True, exist_ok=True)
    for group, lock in LOCKS.items():
        _uv("pip", "compile", "-q", "--upgrade", *_OPTIONS, "--group", group, "-o", str(folder / lock))


def releases(folder: Path) -> list[Release]:
    """Return the releases of all packages, with the locks in `folder`. Raises NoIndexError if the index does not answer."""
    newest = pins(_uv("pip", "compile", "-q", "--no-deps", "--no-annotate", "--no-header", "-", given="\n".join(packages())))
    before, after = (_pins_of(ROOT / "requirements"), _pins_of(folder))
    found = [Release(name, before.get(name, ""), after.get(name, ""), newest.get(name, "")) for name in packages()]
    return found + _of_node()


def _pins_of(folder: Path) -> dict[str, str]:
    return {name: version for lock in reversed(LOCKS.values()) for name, version in pins((folder / lock).read_text()).items()}


def _of_node() -> list[Release]:
    """Return the releases of the packages of node. Without npm, or without an answer, there are none."""
    locked = json.loads((NODE / "package-lock.json").read_text())["packages"]
    found = []
    for name in packages(node=True) if shutil.which("npm") else ():
        ran = subprocess.run(["npm", "view", name, "version"], capture_output=True, text=True, timeout=SECONDS, check=False)
        if ran.returncode == 0:
            pinned = str(locked[f"node_modules/{name}"]["version"])
            found.append(Release(name, pinned, pinned, ran.stdout.strip()))
    return found


def table(found: Iterable[Release]) -> str:
    """Return the releases as a table."""
    lines = [f"{'package':<46}{'pinned':<12}{'allowed':<12}{'newest':<12}"]
    for one in found:
        note = "" if one.is_newest else "a newer release" if one.allowed == one.newest else "a newer release, outside of the limits"
        lines.append(f"{one.package:<46}{one.pinned:<12}{one.allowed:<12}{one.newest:<12}{note}".rstrip())
    return "\n".join(lines)


def _uv(*arguments: str, given: str = "") -> str:
    command = [str(Path(sys.executable).with_name("uv")), *arguments]
    ran = subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, timeout=SECONDS, check=False)
    if ran.returncode:
        raise NoIndexError(" ".join(ran.stderr.split())[-300:])
    return ran.stdout


def main(folder: Path) -> None:
    """Compile the newest locks and print the table. Without an index, say so; the harness then runs with the pinned releases."""
    try:
        compile_newest(folder)
        found = releases(folder)
    except (NoIndexError, subprocess.TimeoutExpired) as error:
        print(f"newer releases are not known, because the index does not answer: {error}")
        return
    (folder / "releases.json").write_text(json.dumps([vars(one) for one in found], indent=2) + "\n")
    print(table(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
