"""Runs the harness: `python -m tests.harness [--record] [LIBRARY ...]`. A call that is read silently wrong ends it with status 1."""

from __future__ import annotations

import gzip
import json
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ratchet.contracts.ids import digest, digest_file
from tests.harness.compare import Outcome, Verdict, judge
from tests.harness.libraries import ENVIRONMENTS, LIBRARIES, ROOT, Library, called, missing, versions
from tests.harness.shapes import Change, changed, shape_of, shape_of_fixture

FIXTURES = ROOT / "tests" / "unit" / "materializer" / "dialects" / "recorded"
RESULTS = ROOT / "benchmarks" / "results" / "dialects.jsonl"


def code_digest() -> str:
    """Return the digest of the code that reads records."""
    files = [path for room in ("materializer/dialects", "tests/harness") for path in sorted((ROOT / room).rglob("*.py"))]
    return digest([[path.relative_to(ROOT).as_posix(), digest_file(path)] for path in files])


def result_of(library: Library, verdicts: list[tuple[dict[str, Any], Verdict]]) -> dict[str, Any]:
    """Return the row of a library for the result."""
    counts = Counter(verdict.outcome for _, verdict in verdicts)
    why = Counter(f"{truth['scene']} ({truth['api']}): {one.why}" for truth, one in verdicts if one.outcome is not Outcome.RIGHT)
    gone = Counter(name for _, one in verdicts for name in one.lost)
    facts = {"not_exported": dict(gone)} if gone else {}
    return {"calls": len(verdicts), **{str(one): counts[one] for one in Outcome}, **facts, "why": sorted(why)}


def fixture_of(name: str) -> Path:
    """Return the file with the recorded exports of a library."""
    return FIXTURES / f"{name.replace(' ', '_')}.jsonl.gz"


def change_of(library: Library, calls: list[tuple[dict[str, Any], list[tuple[str, Any]]]]) -> Change:
    """Return what a library writes elsewhere than in its recorded fixture. Without a fixture, everything is new."""
    path = fixture_of(library.name)
    before = shape_of_fixture(path) if path.exists() else frozenset[str]()
    return changed(before, shape_of(one for _, records in calls for one in records))


def record(name: str, calls: list[Any]) -> None:
    """Write the exports of a library with their truth as a fixture."""
    FIXTURES.mkdir(exist_ok=True)
    lines = b"".join(json.dumps({"truth": truth, "records": records}, ensure_ascii=False).encode() + b"\n" for truth, records in calls)
    for folder in (ROOT, Path(sys.base_prefix), Path.home()):  # stack traces name files of this machine
        lines = lines.replace(str(folder).encode(), b"/srv/app")
    with fixture_of(name).open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(lines)


def record_outcomes(rows: dict[str, dict[str, Any]]) -> None:
    """Write how many calls of each fixture have which outcome. Libraries that did not run keep their counts."""
    path = FIXTURES / "outcomes.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known |= {name: {str(one): row[one] for one in Outcome if row[one]} for name, row in rows.items()}
    path.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the counts as a table, and a line for each call that is not right."""
    heads = ["calls", *map(str, Outcome)]
    lines = [f"{'library':<26}" + "".join(f"{head[:14]:>16}" for head in heads)]
    lines += [f"{name:<26}" + "".join(f"{row[head]:>16}" for head in heads) for name, row in rows.items()]
    lines.append(f"{'all':<26}" + "".join(f"{sum(row[head] for row in rows.values()):>16}" for head in heads))
    return "\n".join([*lines, *(f"{name}: {why}" for name, row in rows.items() for why in row["why"])])


@click.command()
@click.argument("names", nargs=-1)
@click.option("--record", "recording", is_flag=True, help="Write the exports as fixtures of the test suite.")
@click.option("--save", is_flag=True, help="Append the result to benchmarks/results/dialects.jsonl.")
def main(names: tuple[str, ...], recording: bool, save: bool) -> None:
    """Run the program of each library, or of those whose name begins with one of NAMES, and compare what the dialects read."""
    started, rows, skipped, failed = time.monotonic(), dict[str, dict[str, Any]](), dict[str, str](), list[str]()
    used: dict[str, str] = {}
    changes: dict[str, Change] = {}
    for library in LIBRARIES:
        if names and not library.name.startswith(names):
            continue
        if reason := missing(library):
            skipped[library.name] = reason
            continue
        try:
            calls = called(library)
        except RuntimeError as error:
            failed.append(str(error))
            continue
        used |= versions(library)
        rows[library.name] = result_of(library, [(truth, judge(truth, records, library.rules)) for truth, records in calls])
        if change := change_of(library, calls):
            changes[library.name] = change
        click.echo(f"{library.name}: {len(calls)} calls, {time.monotonic() - started:.0f} s", err=True)
        if recording:
            record(library.name, [(truth, records) for truth, records in calls])
    if recording:
        record_outcomes(rows)
    click.echo(table(rows))
    for name, change in changes.items():
        click.echo(f"{name} writes its records in another way than its fixture: {change}")
    for name, reason in skipped.items():
        click.echo(f"{name}: not run, {reason}")
    if save:
        offered = ENVIRONMENTS / "releases.json"
        known = {"releases": json.loads(offered.read_text())} if offered.exists() else {}
        differs = {"changed": {name: vars(change) for name, change in changes.items()}}
        head = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "code": code_digest()[:12], "versions": dict(sorted(used.items()))}
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(head | known | differs | {"libraries": rows, "not_run": skipped}, ensure_ascii=False) + "\n")
    wrong = sum(row[Outcome.WRONG] for row in rows.values())
    if failed or wrong or not rows:
        raise SystemExit("\n".join([*failed, f"{wrong} calls are read silently wrong, {len(failed)} programs failed"]))


if __name__ == "__main__":
    main()
