"""Tests of the reference pages: they are up to date, and they contain every key, command, row kind, variable and entry point."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from pydantic import BaseModel

from docs import code_facts, reference
from ratchet.contracts.loop import Loop
from ratchet.flows.cli.main import cli
from ratchet.trainers.recipes.completion import KINDS


def _page(name: str) -> str:
    return (reference.PAGES / name).read_text()


def _settings(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield a settings class and all settings classes inside it."""
    yield kind
    for field in kind.model_fields.values():
        if inner := reference.nested(field.annotation)[0]:
            yield from _settings(inner)


SETTINGS = sorted({kind for root in (Loop, *KINDS.values()) for kind in _settings(root)}, key=lambda kind: kind.__qualname__)


@pytest.mark.parametrize("name", reference.MAKERS)
def test_page_is_up_to_date(name: str) -> None:
    assert _page(name) == reference.page_text(name), f"docs/reference/{name} differs from the code; run `make reference`"


def test_no_page_is_left_over() -> None:
    assert {path.name for path in reference.PAGES.iterdir()} == set(reference.MAKERS)


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__qualname__)
def test_every_key_of_the_loop_file_is_described(kind: type[BaseModel]) -> None:
    page = _page("loop-file.md")
    for name in kind.model_fields:
        found = re.search(rf"^\| `{name}` \| .+ \| .+ \| (.+) \|$", page, re.MULTILINE)
        assert found, f"{kind.__name__}.{name} is not in loop-file.md; run `make reference`"
    for name, field in kind.model_fields.items():
        text = reference.members(kind).get(name) or reference.nested(field.annotation)[0]
        assert text, f"{kind.__name__}.{name} has no docstring"


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(inner, f"{path} {name}")


def test_every_command_and_option_is_described() -> None:
    sections = dict(re.findall(r"^## `(ratchet[^`]*)`\n(.*?)(?=^## |\Z)", _page("commands.md"), re.MULTILINE | re.DOTALL))
    for path, command in _commands(cli, "ratchet"):
        assert path in sections, f"`{path}` is not in commands.md; run `make reference`"
        for parameter in command.params:
            names = parameter.opts if isinstance(parameter, click.Option) else [parameter.human_readable_name.rstrip(".")]
            for name in names:
                assert re.search(rf"^\| `{name}\b", sections[path], re.MULTILINE), f"{name} of `{path}` is not in commands.md"
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{parameter.name} of `{path}` has no help text"


def test_every_ledger_row_is_described() -> None:
    assert set(code_facts.ledger_rows()) == set(reference.TEXTS["rows"]), "describe each row in docs/reference.toml, then `make reference`"
    page = _page("ledger.md")
    for name in code_facts.ledger_rows():
        assert f"| `{name.split()[0]}` |" in page
    patterns = {name for name, _, _ in code_facts.streams()}
    assert {stream for row in reference.TEXTS["rows"].values() for stream in row["streams"]} == patterns


def test_every_row_names_its_data() -> None:
    silent = {name for name, call in code_facts.ledger_rows().items() if call.given and not call.content}
    assert silent == {name for name, row in reference.TEXTS["rows"].items() if "data" in row}


def test_every_environment_variable_is_described() -> None:
    described = set(re.findall(r"^\| `(RATCHET_\w+)` \|", _page("job-protocol.md"), re.MULTILINE))
    assert described == code_facts.environment(), "add a docstring to each variable, then `make reference`"


def test_every_extension_point_is_described() -> None:
    assert set(code_facts.entry_points()) == set(reference.TEXTS["extensions"])
    page = _page("extension-points.md")
    for group, names in code_facts.entry_points().items():
        assert f"## `{group}`" in page
        assert f"### `{reference.TEXTS['extensions'][group]['port']}`" in page
        assert all(f"| `{name}` | `{target}` |" in page for name, target in names.items())
