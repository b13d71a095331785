"""Tests of the pages about extensions: they show the example package unchanged, and its modules import only the documented surface."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ratchet.flows.config.load import load_loop
from ratchet.runtime.extensions import ExtensionKind
from tests.example_plugin import NAMES, PLUGIN, ROOT

PAGES = ROOT / "docs" / "extending"
MODULES = PLUGIN / "example_plugin"
PROJECT = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
SURFACE = {"ratchet.extend", "ratchet.extend.job", "ratchet.extend.testkit"}
"""The modules of Ratchet that an extension may import."""
UNNAMED = {ExtensionKind.DIALECT}
"""Kinds without lines in the loop file."""


def _blocks(page: Path, language: str, first: str) -> list[str]:
    """Return the code blocks of a page whose first line is the comment `first`, without that line."""
    found = re.findall(rf"```{language}\n# (.*?)\n(.*?)```", page.read_text(), re.DOTALL)
    return [text for head, text in found if head == first]


def test_there_is_one_page_one_module_and_one_entry_point_per_kind() -> None:
    kinds = {kind.value for kind in ExtensionKind}
    assert {page.stem for page in PAGES.glob("*.md")} == kinds | {"index"}
    assert {module.stem for module in MODULES.glob("*.py")} == kinds | {"__init__"}
    assert {kind.group for kind in ExtensionKind} == set(PROJECT["entry-points"])
    assert {kind: next(iter(PROJECT["entry-points"][ExtensionKind(kind).group])) for kind in kinds} == NAMES


@pytest.mark.parametrize("kind", ExtensionKind)
def test_a_page_shows_its_module_and_its_entry_point_unchanged(kind: ExtensionKind) -> None:
    page = PAGES / f"{kind}.md"
    (shown,) = _blocks(page, "python", f"examples/plugin/example_plugin/{kind}.py")
    assert shown == (MODULES / f"{kind}.py").read_text()
    (entry,) = _blocks(page, "toml", "pyproject.toml of the package")
    assert tomllib.loads(entry)["project"]["entry-points"] == {kind.group: PROJECT["entry-points"][kind.group]}


def test_the_index_shows_the_project_file_unchanged_and_links_every_page() -> None:
    (shown,) = _blocks(PAGES / "index.md", "toml", "examples/plugin/pyproject.toml")
    assert shown == (PLUGIN / "pyproject.toml").read_text()
    text = (PAGES / "index.md").read_text()
    assert all(f"({kind}.md)" in text and f"`{kind.group}`" in text for kind in ExtensionKind)


@pytest.mark.parametrize("kind", sorted(set(ExtensionKind) - UNNAMED))
def test_the_loop_file_lines_of_a_page_are_those_of_the_example(kind: ExtensionKind) -> None:
    (shown,) = _blocks(PAGES / f"{kind}.md", "toml", "the loop file")
    whole = tomllib.loads((PLUGIN / "loop.toml").read_text())
    assert _inside(tomllib.loads(shown), whole)


def _inside(part: object, whole: object) -> bool:
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and _inside(value, whole[key]) for key, value in part.items())
    return part == whole


def test_the_loop_file_of_the_example_is_valid() -> None:
    loop = load_loop(PLUGIN / "loop.toml")
    assert (loop.serving.router, loop.training.trainer("sft")) == (NAMES["router"], NAMES["trainer"])


@pytest.mark.parametrize("module", [*sorted(MODULES.glob("*.py")), PLUGIN / "tests" / "test_rules.py"], ids=lambda path: path.stem)
def test_the_example_imports_nothing_of_ratchet_but_the_documented_surface(module: Path) -> None:
    names = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            module_of = str(node.module)
            names.add(module_of if module_of.startswith("ratchet.") else module_of.split(".")[0])
    declared = {re.split(r"\W", requirement)[0] for requirement in PROJECT["dependencies"]} - {"ratchet"}
    allowed = {*SURFACE, *declared, *sys.stdlib_module_names} | ({"pytest", "example_plugin"} if module.parent.name == "tests" else set())
    assert names <= allowed


def test_no_page_imports_anything_else_of_ratchet() -> None:
    for page in PAGES.glob("*.md"):
        imported = set(re.findall(r"^\s*(?:from|import) (ratchet[\w.]*)", page.read_text(), re.MULTILINE))
        assert imported <= SURFACE, page.name


@pytest.mark.slow
def test_the_example_passes_the_suites_of_the_test_kit(example: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(PLUGIN / "tests")]
    ran = subprocess.run(command, cwd=example, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert int(re.findall(r"(\d+) passed", ran.stdout)[0]) >= 19
