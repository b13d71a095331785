"""Tests of rules for the whole code base: file size, imports, names and entry points."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PACKAGES = ("contracts", "runtime", "rewards", "materializer", "trainers", "gates", "router", "k8s", "local", "flows")
"""The subpackages of `ratchet`, which are folders at the top level."""
SOURCES = sorted(path for folder in (*PACKAGES, "ratchet") for path in (REPO / folder).rglob("*.py"))


def tracked() -> list[Path]:
    """The files of the project; without git, all files but those of hidden folders and caches."""
    if not (REPO / ".git").exists():
        found = (path for path in REPO.rglob("*") if path.is_file())
        return [path for path in found if not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(REPO).parts)]
    names = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, check=True).stdout.decode().split("\0")
    return [REPO / name for name in names if name and (REPO / name).is_file()]


def test_no_file_is_longer_than_500_lines() -> None:
    long = {path.relative_to(REPO): n for path in SOURCES if (n := len(path.read_text().splitlines())) > 500}
    assert not long


@pytest.mark.slow
def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(REPO)) for path in SOURCES if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


def test_nothing_is_left_for_later() -> None:
    words = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    found = [
        f"{path.relative_to(REPO)}:{n}" for path in SOURCES for n, line in enumerate(path.read_text().splitlines(), 1) if words.search(line)
    ]
    assert not found


def _module(path: Path) -> str:
    parts = ("ratchet", *path.relative_to(REPO).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path, known: set[str]) -> set[str]:
    """Return the project's modules that `path` imports at load time (not inside functions or under TYPE_CHECKING)."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found & known


@pytest.mark.slow
def test_no_modules_import_each_other_in_a_circle() -> None:
    known = {_module(path) for path in SOURCES}
    graph = {_module(path): _imports(path, known) for path in SOURCES}
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join([*way[way.index(module) :], module])
        if module not in done:
            for other in sorted(graph[module]):
                visit(other, (*way, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_the_import_rules_hold() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    ran = subprocess.run([tool], cwd=REPO, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


HEAVY = {
    "torch",
    "transformers",
    "trl",
    "mlflow",
    "kubernetes",
    "polars",
    "pyarrow",
    "pyiceberg",
    "prefect",
    "sqlalchemy",
    "scipy",
    "numpy",
}


def _loaded(*command: str) -> set[str]:
    ran = subprocess.run([sys.executable, "-X", "importtime", *command], cwd=REPO, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    times = [line.rsplit("|", 1)[1].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")]
    return {name.split(".")[0] for name in times}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    loaded = _loaded("-m", "ratchet.flows.cli.main", *arguments)
    assert "click" in loaded
    assert not loaded & HEAVY


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("ratchet.contracts.ports", set()),
        ("ratchet.rewards.scorer_set", set()),
        ("ratchet.flows.core.decide", set()),
        ("ratchet.flows.core.rollouts.rollout", set()),
        ("ratchet.trainers.backends.trl", {"numpy"}),
        ("ratchet.trainers.job.supervisor", {"numpy"}),
        ("ratchet.local.executor", set()),
        ("ratchet.flows.composition.ports", set()),
        ("ratchet.flows.composition.installation", set()),
        ("ratchet.flows.composition.cluster", set()),
    ],
)
def test_light_modules_stay_light(module: str, allowed: set[str]) -> None:
    assert not _loaded("-c", f"import {module}") & (HEAVY - allowed)


def test_no_dependency_owns_the_import_name() -> None:
    assert set(importlib.metadata.packages_distributions().get("ratchet", ["ratchet"])) == {"ratchet"}


def test_the_package_links_to_each_folder() -> None:
    links = {path.name: path.readlink().as_posix() for path in (REPO / "ratchet").iterdir() if path.is_symlink()}
    assert links == {package: f"../{package}" for package in PACKAGES}


def test_nothing_imports_a_folder_by_its_bare_name() -> None:
    """A bare import works in a checkout only, and there it loads a second copy of the module."""
    bare = re.compile(
        rf"^\s*(?:from|import) (?:{'|'.join(PACKAGES)})\b|-m (?:{'|'.join(PACKAGES)})\.\w|\"-m\", \"(?:{'|'.join(PACKAGES)})\.",
        re.MULTILINE,
    )
    found = [
        f"{path.relative_to(REPO)}: {hit.group().strip()}"
        for path in tracked()
        if path.suffix in (".py", ".md", ".sh", ".toml", ".yaml", ".Dockerfile", "") and path.name != "LICENSE"
        for hit in bare.finditer(path.read_text())
    ]
    assert not found


def test_every_loop_file_is_one() -> None:
    from ratchet.flows.config.load import load_loop

    files = [*sorted((REPO / "loops").glob("*/loop.toml")), REPO / "flows" / "demo" / "demo.toml"]
    assert files
    for file in files:
        assert load_loop(file).line.name


def test_every_entry_point_leads_to_something() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    for group, names in project["entry-points"].items():
        for entry in importlib.metadata.entry_points(group=group):
            if entry.dist is not None and entry.dist.name == "ratchet":
                assert names[entry.name] == entry.value, "the entry points have changed; install the project again"
                entry.load()
    importlib.metadata.EntryPoint("ratchet", project["scripts"]["ratchet"], "console_scripts").load()


def test_every_command_can_be_asked_for_help() -> None:
    from ratchet.flows.cli.main import COMMANDS

    for command in COMMANDS:
        module = COMMANDS[command][0]
        assert (REPO / Path(*module.split("."))).with_suffix(".py").exists(), f"`ratchet {command}` needs {module}, which does not exist"


def test_lock_files_pin_by_hash_and_name_no_index() -> None:
    locks = sorted((REPO / "requirements").glob("*.lock"))
    assert locks
    for lock in locks:
        text = lock.read_text()
        assert "://" not in text, f"{lock.name} contains a URL"
        assert not re.search(r"^\s*--(index|extra-index|find-links|trusted)", text, re.MULTILINE), lock.name
        pins = re.findall(r"^(\S+)==\S+ (?:; .+ )?\\\n((?:\s+--hash=\S+.*\n)+)", text, re.MULTILINE)
        assert len(pins) == len(re.findall(r"^[a-zA-Z0-9]", text, re.MULTILINE)), f"{lock.name} has a requirement without a pin and hash"


def test_the_project_speaks_of_itself_alone() -> None:
    words = ["/wo" + "rk/", "sub" + "agent", "/tmp/br" + "ief", "/ro" + "ot/", "clau" + "de"]
    found = []
    for path in tracked():
        try:
            text = path.read_text().lower()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(REPO)}: {word}" for word in words if word in text]
    assert not found


def test_no_file_holds_a_key() -> None:
    keys = re.compile(
        r"AKIA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY-----|gh[pousr]_[A-Za-z0-9]{36}|hf_[A-Za-z0-9]{34}|sk-[A-Za-z0-9]{40}"
    )
    found = [str(path.relative_to(REPO)) for path in tracked() if keys.search(path.read_bytes().decode("utf-8", errors="replace"))]
    assert not found


@pytest.mark.slow
def test_no_file_holds_a_merge_conflict() -> None:
    markers = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
    assert [path.relative_to(REPO) for path in tracked() if markers.search(path.read_bytes())] == []
