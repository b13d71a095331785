"""Tests of the documentation: its commands exist, its loop files parse, its code runs, and its links resolve."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from contracts.ports import RewardFunction
from flows.cli.main import COMMANDS, cli
from flows.config.load import load_loop, parse_loop

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_the_documentation_exists(page: Path) -> None:
    text = page.read_text()
    for name in set(re.findall(r"(?:^|[`(\s/])ratchet ([a-z0-9]+)", text, re.MULTILINE)) - {"turns"}:
        assert name in COMMANDS, f"{page.name} names `ratchet {name}`, which does not exist"
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in set(re.findall(r"`make ([a-z0-9]+)`", text)):
        assert name in targets, f"{page.name} names `make {name}`, which does not exist"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_in_the_documentation_exists(page: Path) -> None:
    for name in set(
        re.findall(
            r"`((?:contracts|runtime|rewards|materializer|trainers|gates|k8s|local|flows|tests|loops|docs|benchmarks)/[\w/.]*\w)`",
            page.read_text(),
        )
    ):
        assert (ROOT / name).exists(), f"{page.name} names {name}, which does not exist"
    for link in set(re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text())):
        assert (page.parent / link).exists(), f"{page.name} links to {link}, which does not exist"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_text(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--help"])
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) > 4


@pytest.mark.parametrize("loop", sorted((ROOT / "loops").glob("*.toml")), ids=lambda loop: loop.name)
def test_every_loop_file_parses(loop: Path) -> None:
    assert load_loop(loop).line.name


def test_init_writes_a_valid_loop_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["init", "mine.toml", "--line", "my-line"])
    assert result.exit_code == 0, result.output
    assert load_loop(tmp_path / "mine.toml").line.name == "my-line"


def test_reward_in_the_guide_works() -> None:
    text = (ROOT / "docs" / "extending.md").read_text()
    code, loop = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], re.findall(r"# the loop file\n(.*?)```", text, re.DOTALL)[0]
    names: dict = {}
    exec(code, names)
    reward: RewardFunction = names["MentionsTicket"](**tomllib.loads(loop)["rewards"][0]["options"])
    assert reward.score([{"answer": "see OPS-12"}, {"answer": "no"}]) == [1.0, 0.0]
    line = {"line": {"name": "a", "served_model": "a"}, "sources": [{"name": "r", "kind": "receiver"}]}
    assert parse_loop({**line, **tomllib.loads(loop)}, "guide").rewards[0].name == reward.name
