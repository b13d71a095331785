"""Tests of the commands in the pages: every shell block says where it runs, and every `ratchet` command is one."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from ratchet.flows.cli.main import cli
from tests.docs.walk import FOLLOWED, ROOT, begin, blocks, command_lines, flaws, runs

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "loops").rglob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [*FOLLOWED, ROOT / "docs" / "quickstart.md"], ids=name)
def test_every_shell_block_says_where_it_runs_or_why_it_does_not(page: Path) -> None:
    assert flaws(page) == []


@pytest.mark.parametrize(
    "text", ["```\nratchet status\n```", "```sh\nratchet status\n```", "<!-- terminal -->\n```sh\nls\n```", "```bash\nls\n```"]
)
def test_a_block_without_a_mark_is_found(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{text}\n")
    assert len(flaws(page)) == 1


def test_marks_of_indented_blocks_are_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- after quickstart -->\n\n1. Do it:\n\n"
        "   <!-- terminal 2, may fail: nothing runs -->\n   ```sh\n   ratchet status | head\n\n   ls\n   ```\n\n"
        "<!-- write a/b.json -->\n```json\n{}\n```\n\n<!-- not run: needs a GPU -->\n```sh\nX=1 ratchet doctor --gpu > out\n```\n"
    )
    first, second, third = blocks(page)
    assert (begin(page), runs(page), flaws(page)) == ("after quickstart", True, [])
    assert (first.terminal, first.may_fail, first.commands) == (2, True, ("ratchet status | head", "", "ls"))
    assert (second.file, second.text) == ("a/b.json", "{}\n")
    assert third.not_run == "needs a GPU"
    assert command_lines(page) == [["status"], ["doctor", "--gpu"]]


def parse(arguments: list[str]) -> None:
    """Parse the arguments of a `ratchet` command without running it. Raises click.UsageError if they do not fit it."""
    context = cli.make_context("ratchet", list(arguments))
    while isinstance(context.command, click.Group):
        found, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(found, rest, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_line_fits_its_command(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.Path, "convert", lambda _self, value, _param, _context: value)  # the files are the reader's
    for arguments in command_lines(page):
        try:
            parse(arguments)
        except click.exceptions.Exit:
            pass  # --help and --version
        except click.UsageError as error:
            pytest.fail(f"`ratchet {' '.join(arguments)}`: {error.format_message()}")


@pytest.mark.parametrize(
    "arguments", [["trigger"], ["status", "--absent"], ["quarantine", "lost"], ["k8s", "render", "a.toml", "--gang=1"]]
)
def test_a_command_line_that_does_not_fit_is_found(arguments: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parse(arguments)
