"""`ratchet quarantine`: lists, shows and replays the records of a line that could not be stored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ratchet.contracts.errors import ConfigError
from ratchet.flows.cli.lines import named_loop
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.output import json_option, open_installation, print_json, table, watched
from ratchet.flows.cli.terminal import say, show

if TYPE_CHECKING:
    from ratchet.contracts.data.quarantine import QuarantineEntry, ReplayReport
    from ratchet.contracts.ports import Progress
    from ratchet.flows.engine.context import LineContext

_SHOWN = 200
"""Number of entries that a table lists, newest first."""


@click.group()
def quarantine() -> None:
    """List, show and replay the records of a line that could not be stored."""


@quarantine.command("list")
@line_argument()
@click.option("--reason", help="Only entries with this reason.")
@click.option("--since", help="Only entries since this time (ISO 8601, UTC).")
@click.option("--all", "every", is_flag=True, help="Also entries that are resolved.")
@json_option
def list_(line: str, reason: str | None, since: str | None, every: bool, as_json: bool) -> None:
    """List the open entries of LINE, by reason and source, and one by one.

    LINE is the name of a line or the path of its loop file. An entry is a record, or a part of one, that could not be read or was not
    admitted.
    """
    with watched(as_json, f"reading the quarantine of {line} …") as progress:
        context = _context(line, progress, as_json)
        begin = _time(since) if since else None
        found = [
            entry
            for entry in context.datasets.quarantine.entries()
            if (every or entry.is_open) and reason in (None, entry.reason) and (begin is None or entry.first >= begin)
        ]
    if as_json:
        print_json([_json(context.line, entry) for entry in found])
        return
    if not found:
        say(f"line {context.line} has no {'entry' if every else 'open entry'} in its quarantine")
        return
    groups = Counter[tuple[str, str]]()
    for entry in found:
        groups[entry.reason, entry.source] += entry.parts
    rows = sorted(groups.items(), key=lambda item: (-item[1], item[0]))
    table(f"Quarantine of {context.line}", ["reason", "source", "records"], [[*key, n] for key, n in rows])
    newest = sorted(found, key=lambda entry: entry.last, reverse=True)[:_SHOWN]
    columns = ["id", "when (UTC)", "reason", "place", "kept until", "state"]
    table(f"Newest {len(newest)} of {len(found)} entries", columns, [_row(context.line, entry) for entry in newest])


@quarantine.command("show")
@click.argument("identity", metavar="LINE/ID")
@json_option
def show_(identity: str, as_json: bool) -> None:
    """Show one entry: its place, its reason, what to do about it, and its masked bytes if they are kept."""
    with watched(as_json, f"reading {identity} …") as progress:
        name, entry_id = _split(identity)
        context = _context(name, progress, as_json)
        entry = next((one for one in context.datasets.quarantine.entries() if one.id == entry_id), None)
        if entry is None:
            raise ConfigError(f"line {context.line!r} has no entry {entry_id!r}; `ratchet quarantine list {context.line}` lists them")
        content = context.datasets.quarantine.content(entry.id)
    from ratchet.materializer.quarantine.advice import advice

    if as_json:
        kept = {"text": content.text, "truncated": content.truncated} if content else None
        print_json(_json(context.line, entry) | {"advice": advice(entry.reason), "content": kept})
        return
    facts = [
        ("place", _place(entry)),
        ("source", entry.source),
        ("reason", f"{entry.reason}: {entry.detail}" if entry.detail else entry.reason),
        ("quarantined", f"{entry.first:%Y-%m-%d %H:%M:%S} UTC"),
        ("user", entry.user or "not known"),
        ("records", str(entry.parts)),
        ("state", _state(entry)),
        ("what to do", advice(entry.reason)),
    ]
    table(f"{context.line}/{entry.id}", ["", ""], facts)
    if content is None:
        show("No bytes of the record are kept.")
    else:
        show(f"Masked bytes, kept until {entry.expires:%Y-%m-%d %H:%M} UTC" + (" (cut)" if content.truncated else "") + ":")
        show(_pretty(content.text))


@quarantine.command()
@click.argument("names", nargs=-1, required=True, metavar="LINE|LINE/ID…")
@click.option("--reason", help="All open entries of LINE with this reason.")
@click.option("--all", "every", is_flag=True, help="All open entries of LINE.")
@click.option("--dry-run", is_flag=True, help="Store nothing; only show what would be stored.")
@json_option
def replay(names: Sequence[str], reason: str | None, every: bool, dry_run: bool, as_json: bool) -> None:
    """Read entries again, and store the records that are accepted now.

    Names are either entries, as LINE/ID, or one LINE with --reason or --all. A record is read from its file if that still has it, otherwise
    from its masked bytes. Each record is stored once, however often it is replayed.
    """
    with watched(as_json, "replaying …") as progress:
        from ratchet.flows.engine.context import TURN_SECONDS, leased

        whole = every or reason is not None
        if whole and len(names) != 1:
            raise ConfigError("name one line with --reason or --all")
        split = [(names[0], "")] if whole else [_split(name) for name in names]
        if len({name for name, _ in split}) != 1:
            raise ConfigError("name entries of one line at a time")
        context = _context(split[0][0], progress, as_json)
        held = context.datasets.quarantine
        found = [entry for entry in held.entries() if entry.is_open and reason in (None, entry.reason)]
        wanted = [entry.id for entry in found] if whole else [identity for _, identity in split]
        if missing := set(wanted) - {entry.id for entry in found}:
            raise ConfigError(f"line {context.line!r} has no open entry {', '.join(sorted(missing))}")
        with leased(context, "a replay", f"ingest/{context.line}", TURN_SECONDS):
            report = held.replay(wanted, dry_run)
    _print_replay(context.line, report, as_json)


def _print_replay(line: str, report: ReplayReport, as_json: bool) -> None:
    if as_json:
        print_json({"line": line} | report.model_dump(mode="json") | {"outcomes": report.outcomes})
        return
    rows = [[f"{line}/{one.id}", one.outcome, one.reason, one.by, one.detail] for one in report.entries[:_SHOWN]]
    table("Replay" + (" (dry run)" if report.dry_run else ""), ["id", "outcome", "reason", "read from", "detail"], rows)
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in report.outcomes.items()) or "none"
    would = "would be" if report.dry_run else "were"
    show(f"{len(report.entries)} entries: {outcomes}; {report.stored} rows {would} added to the lake")


def _context(line: str, progress: Progress, quiet: bool) -> LineContext:
    installation = open_installation(progress)
    return installation.context(named_loop(installation, line, quiet))


def _split(name: str) -> tuple[str, str]:
    line, _, identity = name.rpartition("/")
    if not line or not identity:
        raise ConfigError(f"{name!r} is no entry; name it as LINE/ID, as `ratchet quarantine list` prints it")
    return line, identity


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--since {text!r} is no time; write for example 2026-11-01 or 2026-11-01T12:00") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _row(line: str, entry: QuarantineEntry) -> list[str]:
    kept = f"{entry.expires:%Y-%m-%d}" if entry.expires else "–"
    return [f"{line}/{entry.id}", f"{entry.first:%Y-%m-%d %H:%M}", entry.reason, _place(entry), kept, _state(entry)]


def _place(entry: QuarantineEntry) -> str:
    place = f"{entry.origin or 'batch ' + entry.batch[:12]}, {entry.position}"
    return place if entry.offset is None else f"{place} (byte {entry.offset:,}, {entry.length:,} bytes)"


def _state(entry: QuarantineEntry) -> str:
    return "open" if entry.is_open else f"{entry.state} {entry.last:%Y-%m-%d} by release {entry.release}"


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


def _json(line: str, entry: QuarantineEntry) -> dict[str, Any]:
    return {"line": line} | entry.model_dump(mode="json")
