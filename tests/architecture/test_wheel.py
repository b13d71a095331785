"""Tests of the wheel: its contents, and its installation as a command with uv.

The test of the installation needs no network: the wheel is installed without its dependencies, and a path file gives it those of the
running environment. `make wheel` installs it with all dependencies, with uv and with pipx.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ratchet.flows.cli.main import COMMANDS
from ratchet.trainers.code_digest import code_digest
from tests.architecture.test_rules import PACKAGES, REPO, tracked

pytestmark = pytest.mark.slow

PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
Run = Callable[..., str]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the project's files."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    for path in tracked():
        target = copy / path.relative_to(REPO)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    for package in PACKAGES:
        (copy / "ratchet" / package).symlink_to(Path("..") / package)
    build = "from setuptools.build_meta import build_wheel; import sys; build_wheel(sys.argv[1])"
    ran = subprocess.run([sys.executable, "-c", build, str(folder)], cwd=copy, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_one_import_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ratchet"}
    ours = {f"ratchet/{name}" for path in tracked() if (name := path.relative_to(REPO).as_posix()).split("/")[0] in PACKAGES}
    assert ours <= set(names), f"missing from the wheel: {sorted(ours - set(names))[:5]}"


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A function that runs a program of the installed wheel in an empty folder and returns its output."""
    folder = tmp_path_factory.mktemp("tools")
    dropped = folder / "without_dependencies.txt"
    names = [Requirement(requirement).name for requirement in PROJECT["dependencies"]]
    dropped.write_text("".join(f"{name} ; sys_platform == 'none'\n" for name in names))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "UV_", "RATCHET_", "PREFECT_"))}
    environment |= {"UV_TOOL_DIR": str(folder / "uv"), "UV_TOOL_BIN_DIR": str(folder / "bin"), "UV_CACHE_DIR": str(folder / "cache")}
    uv = [str(Path(sys.executable).with_name("uv")), "tool", "install", "--no-config", "--offline", "--no-index"]
    arguments = ["--overrides", str(dropped), "--python", sys.executable, str(wheel)]
    done = subprocess.run([*uv, *arguments], env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (site,) = (folder / "uv" / "ratchet").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    programs = {"ratchet": folder / "bin" / "ratchet", "python": folder / "uv" / "ratchet" / "bin" / "python"}

    def run(program: str, *arguments: str) -> str:
        ran = subprocess.run([programs[program], *arguments], env=environment, cwd=folder, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"{arguments}: exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout + ran.stderr

    return run


@pytest.mark.slow
def test_the_installed_command_reports_its_version_and_lists_its_commands(command: Run) -> None:
    assert command("ratchet", "--version") == f"ratchet {PROJECT['version']} (training code {code_digest()[:12]})\n"
    shown = command("ratchet", "--help")
    assert [name for name in COMMANDS if f"\n  {name} " not in shown] == []


@pytest.mark.slow
def test_the_installed_command_uses_the_code_of_the_wheel(command: Run) -> None:
    program = f"import importlib\nfor name in {PACKAGES!r}: print(list(importlib.import_module('ratchet.' + name).__path__)[0])"
    places = command("python", "-c", program)
    (site,) = {str(Path(place).parents[1]) for place in places.splitlines()}
    assert site.endswith("uv/ratchet/lib/python{}.{}/site-packages".format(*sys.version_info))


@pytest.mark.slow
def test_the_first_commands_of_the_quickstart_work(command: Run) -> None:
    findings = json.loads(command("ratchet", "doctor", "--json"))
    assert {"ratchet.rewards", "ratchet.trainers", "ratchet.servers", "home"} <= {finding["about"] for finding in findings}
    assert [finding for finding in findings if finding["level"] == "error"] == []
    command("ratchet", "init", "loop.toml", "--line", "support")
    assert json.loads(command("ratchet", "check", "loop.toml", "--json"))["ok"]
    assert json.loads(command("ratchet", "ingest", "loop.toml", "--json"))["read"] == 0
