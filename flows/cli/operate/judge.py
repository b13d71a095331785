"""`ratchet judge`: people grade a sample of answers, by which the judges of a line are measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.contracts.errors import ConfigError
from ratchet.flows.cli.lines import named_loop
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.output import actor_option, json_option, open_installation, print_json, watched
from ratchet.flows.cli.terminal import say

if TYPE_CHECKING:
    from ratchet.flows.engine.context import LineContext
    from ratchet.rewards.judge.records import JudgeRecords

_WORDS = {"right": 1.0, "wrong": 0.0}
"""Grades in words."""


@click.group()
def judge() -> None:
    """Measure the judges of a line by grades that people give."""


@judge.command()
@line_argument()
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--size", default=100, show_default=True, type=click.IntRange(1, 100_000), help="Number of answers.")
@json_option
def export(line: str, out: Path, size: int, as_json: bool) -> None:
    """Write a random sample of the logged answers of LINE to the new file OUT, for people to grade.

    Each line is a JSON object with the prompt, the answer and an empty `grade`. A grade is a number from 0 (wrong) to 1 (right), or one of
    the words right and wrong. Answers that have a grade are left out. The file contains texts of users: delete it afterwards.
    """
    if out.exists():
        raise ConfigError(f"{out} exists; name a new file")
    with watched(as_json, f"selecting answers of {line} …") as progress:
        installation = open_installation(progress)
        context = installation.context(named_loop(installation, line, as_json))
        rows = _sample(context, _records(context), size)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        out.write_text(text, encoding="utf-8")
    if as_json:
        print_json({"file": str(out), "answers": len(rows)})
    else:
        say(f"{len(rows)} answers in {out}; fill in each `grade`, then run `ratchet judge grade {line} {out}`")


@judge.command()
@line_argument()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@actor_option
@json_option
def grade(line: str, file: Path, by: str, as_json: bool) -> None:
    """Read the grades in FILE, which `ratchet judge export` has written for LINE.

    Lines without a grade are skipped. A later grade of an answer replaces an earlier one. The judges are measured again at the next cycle.
    """
    grades = dict(_grades(file))
    installation = open_installation()
    context = installation.context(named_loop(installation, line, as_json))
    _records(context).grade(grades, by, datetime.now(UTC))
    if as_json:
        print_json({"line": context.line, "grades": len(grades)})
    else:
        say(f"line {context.line}: {len(grades)} grades by {by}")


def _records(context: LineContext) -> JudgeRecords:
    from ratchet.flows.config.home import Home
    from ratchet.rewards.judge.records import JudgeRecords

    home = Home.from_environment()
    return JudgeRecords(home.judgements, context.line, home.database(context.line))


def _sample(context: LineContext, records: JudgeRecords, size: int) -> list[dict[str, Any]]:
    """Return a random sample of the answers that may be used at present. The same data gives the same sample."""
    from ratchet.contracts.ids import digest, hash_share
    from ratchet.flows.core.asking.parquet_rows import rows_of
    from ratchet.flows.engine.choice.preview import EDITION
    from ratchet.rewards.judge.messages import content_key

    seen = digest([context.datasets.cursor().model_dump(mode="json"), context.loop.model_dump(mode="json")])
    name = f"judge/{context.line}/{seen[:16]}"
    snapshot = context.datasets.freeze(name, context.clock.now(), context.datasets.edition(EDITION))
    rows = rows_of(context.artifacts.get(snapshot.samples), ("prompt", "answer", "origin"))
    logged = [{"prompt": json.loads(row["prompt"]), "answer": row["answer"]} for row in rows if row["origin"] == "traffic"]
    known, salt = records.grades(), records.salt()
    distinct = {key: sample for sample in logged if (key := content_key(sample)) not in known}
    chosen = sorted(distinct, key=lambda key: hash_share("export", salt, key))[:size]
    return [{"id": key, **distinct[key], "grade": None} for key in chosen]


def _grades(file: Path) -> Iterator[tuple[str, float]]:
    """Yield digest and grade of each graded answer. Raises ConfigError for a line that is invalid or whose texts were changed."""
    from ratchet.rewards.judge.messages import content_key

    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            key, given = content_key(row), row["grade"]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"{file}, line {number}: not a line of `ratchet judge export` ({type(error).__name__})") from error
        if key != row.get("id"):
            raise ConfigError(f"{file}, line {number}: the prompt or the answer was changed; change only `grade`")
        if given is None:
            continue
        value = _WORDS.get(given) if isinstance(given, str) else given
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ConfigError(f"{file}, line {number}: the grade must be a number from 0 to 1, or right or wrong (found {given!r})")
        yield key, float(value)
