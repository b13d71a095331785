"""Installs the example package of `examples/plugin` as a built wheel, and uses it in a real line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = ROOT / "examples" / "plugin"
NAMES = {
    "reward": "mentions_ticket",
    "source": "chat-exports",
    "dialect": "support-chat",
    "check": "latency",
    "server": "canned",
    "router": "gateway-file",
    "metrics": "access-log",
    "trainer": "canned-sft",
}
"""Kind -> entry point name of the example's extension."""


def build(folder: Path) -> Path:
    """Build the example's wheel without network, unpack it below `folder` as an installer does, and return the site folder."""
    shutil.copytree(PLUGIN, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    command = "from setuptools.build_meta import build_wheel; import sys; build_wheel(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", command, str(folder)], cwd=folder / "source", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@contextmanager
def on_path(site: Path) -> Iterator[None]:
    """Make the site folder importable in this process and in the processes that it starts, and remove it again."""
    before, modules = os.environ.get("PYTHONPATH"), set(sys.modules)
    sys.path.insert(0, str(site))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), str(ROOT), before]))
    try:
        yield
    finally:
        sys.path.remove(str(site))
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
        for name in set(sys.modules) - modules:
            if name.split(".")[0] == "example_plugin":
                del sys.modules[name]
