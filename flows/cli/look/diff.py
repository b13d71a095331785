"""`ratchet diff`: compares two versions of a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ratchet.contracts.errors import ConfigError
from ratchet.flows.cli.names import complete_version, named_version
from ratchet.flows.cli.output import json_option, open_installation, print_json, table
from ratchet.flows.cli.terminal import show

if TYPE_CHECKING:
    from ratchet.flows.report.version_diff import Answers, VersionDiff

_TEXT = 600
"""Characters of a prompt or an answer that are shown."""


@click.command()
@click.argument("old", shell_complete=complete_version)
@click.argument("new", shell_complete=complete_version)
@click.option(
    "--answers", default=3, show_default=True, type=click.IntRange(0), help="Answers to show side by side, those that differ most first."
)
@json_option
def diff(old: str, new: str, answers: int, as_json: bool) -> None:
    """Compare the versions OLD and NEW of a line: data, recipe, scores and answers.

    A version is LINE/NUMBER for that of a cycle, LINE/0 for the adopted model, LINE/champion, LINE/previous, or a tag or its beginning.
    Answers are shown if the gate has compared the two versions.
    """
    from ratchet.flows.composition.artifacts import open_artifacts
    from ratchet.flows.report.version_diff import diff_sections, version_diff

    installation = open_installation()
    sides = [named_version(installation, name) for name in (old, new)]
    lines = [side.version.line for side in sides]
    if lines[0] != lines[1]:
        raise ConfigError(f"{old} is a version of line {lines[0]}, {new} of line {lines[1]}; name two versions of one line")
    found = version_diff(sides[0], sides[1], open_artifacts(installation.home), answers)
    tags = [side.version.tag for side in sides]
    if as_json:
        print_json({"old": tags[0], "new": tags[1], **_as_json(found)})
        return
    show(f"{lines[0]}: {tags[0]} → {tags[1]}", bold=True)
    for section in diff_sections(sides[0], sides[1], found):
        show(f"\n{section.title}", bold=True)
        for sentence in section.text:
            show(f"  {sentence}")
        if section.table:
            table("", section.table.columns, section.table.rows)
    for number, one in enumerate(found.answers, 1):
        _show_answers(number, one, tags)


def _show_answers(number: int, one: Answers, tags: list[str]) -> None:
    show(f"\nAnswer {number}: {_short(one.prompt)}", bold=True)
    rewards = ["–" if reward is None else f"{reward:g}" for reward in (one.old_reward, one.new_reward)]
    table("", ["version", "reward", "answer"], [[tags[0], rewards[0], _short(one.old)], [tags[1], rewards[1], _short(one.new)]])


def _short(text: str) -> str:
    return text if len(text) <= _TEXT else text[:_TEXT] + " …"


def _as_json(found: VersionDiff) -> dict[str, Any]:
    scores = {name: [one.model_dump(mode="json") if one else None for one in pair] for name, pair in found.scores.items()}
    return {
        "data": found.data,
        "examples": {"added": found.added, "removed": found.removed, "kept": found.kept},
        "recipe": found.recipe,
        "scores": scores,
        "compared_in": found.together,
        "comparison": {name: one.model_dump(mode="json") for name, one in found.direct.items()},
        "changed": list(found.changed),
        "answers": [vars(one) for one in found.answers],
    }
