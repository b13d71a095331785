"""`ratchet sources try`: says what a file, folder or API of traces is, what would be read from it, and how to configure it as a source."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.flows.cli.operate.run import FILE_KINDS
from ratchet.flows.cli.output import json_option, print_json, table, watched
from ratchet.flows.cli.terminal import say
from ratchet.flows.cli.unread import unread_text

if TYPE_CHECKING:
    from ratchet.contracts.loop import Loop, SourceSettings
    from ratchet.materializer.receive.trial.recognition import Recognised
    from ratchet.materializer.receive.trial.trial import Coverage, Example, SourceTrial

_TEXT = 120
"""Characters of a text that are shown."""


@click.group()
def sources() -> None:
    """Try a file, folder or API of traces before a line reads it."""


@sources.command(name="try")
@click.argument("place")
@click.option("--kind", type=click.Choice(FILE_KINDS), help="Kind of source that reads it. Default: recognised by the content.")
@click.option(
    "--mapping", multiple=True, metavar="COLUMN=KEY", help="Key of the records for a column, instead of the guess. May be repeated."
)
@click.option("--loop", type=click.Path(path_type=Path), help="Loop file whose rules apply, and whose source, if it has PLACE.")
@json_option
def try_source(place: str, kind: str | None, mapping: tuple[str, ...], loop: Path | None, as_json: bool) -> None:
    """Try what a source would read from PLACE. Nothing is stored, and no installation is needed.

    PLACE is a file, a folder, a place on S3 (s3://BUCKET/PREFIX), or the address of Langfuse, whose last day is read then. Large places are
    read in part. Without --loop, consent is taken as assumed, so that the contents are tried too, and the defaults of the masking apply.
    With it, the rules of the loop file for consent, masking and placeholders apply; if PLACE belongs to one of its sources, so do the
    settings of that source. The exit code is 1 if no record would be kept.
    """
    rules, given = _loop(loop), dict(_pair(one) for one in mapping)
    known = None if rules is None or loop is None else configured(rules, loop.absolute().parent, place, kind)
    with watched(as_json, f"reading {place} …"):
        found, trial, block = _tried(place, kind, given, rules, known)
    used = given if known is None else {**known.mapping, **given}
    if as_json:
        print_json(_as_json(found, trial, block, used) | {"source": None if known is None else known.name})
    else:
        if known is not None:
            say(f"{place} belongs to the source {known.name!r} of {loop}, whose settings apply")
        _show(place, found, trial, block, used, assumed=loop is None, is_known=known is not None)
    sys.exit(0 if trial is not None and trial.kept else 1)


def _pair(text: str) -> tuple[str, str]:
    column, equals, key = text.partition("=")
    if not column or not equals or not key:
        raise ConfigError(f"--mapping {text}: give COLUMN=KEY, for example --mapping id=request_id")
    return column, key


def _loop(path: Path | None) -> Loop | None:
    from ratchet.flows.config.load import load_loop

    return None if path is None else load_loop(path)


def configured(loop: Loop, folder: Path, place: str, kind: str | None) -> SourceSettings | None:
    """Return the source of the loop file that would read a place; None without one.

    The loop file is in `folder`. A source reads its own place and what is inside it. If several sources read a place, the one with the
    longest path counts. `kind`, if given, must be that of the source. Sources of other packages cannot be tried. Raises ConfigError if two
    sources have the same place.
    """
    found: list[tuple[int, SourceSettings]] = []
    for source in loop.sources:
        where = source.path or (str(source.options.get("base_url") or "") if source.kind == "langfuse" else "")
        if not where or source.kind not in FILE_KINDS or kind not in (None, source.kind):
            continue
        if "://" in where or "://" in place:
            inside = place.rstrip("/") == where.rstrip("/") or (source.path is not None and place.startswith(where.rstrip("/") + "/"))
        else:
            inside = Path(place).resolve().is_relative_to((folder / where).resolve())
        if inside:
            found.append((len(str(folder / where)), source))
    longest = max((length for length, _ in found), default=0)
    nearest = [source for length, source in found if length == longest]
    if len(nearest) > 1:
        names = ", ".join(source.name for source in nearest)
        raise ConfigError(f"{place} belongs to the sources {names} of the loop file; give --kind, or try it without --loop")
    return nearest[0] if nearest else None


def _tried(
    place: str, kind: str | None, given: Mapping[str, str], loop: Loop | None, known: SourceSettings | None
) -> tuple[Recognised, SourceTrial | None, str | None]:
    """Return (what the place is, what was read, the block for the loop file). The last two are None if nothing reads it.

    `known` is the source of the loop file to which the place belongs. Without `given`, it needs no block.
    """
    from pydantic import ValidationError

    from ratchet.contracts.data.decoding import Limits
    from ratchet.contracts.loop import SourceSettings
    from ratchet.contracts.loop.privacy import PrivacySettings
    from ratchet.materializer.dialects.screening.sample import limits_of
    from ratchet.materializer.privacy.masking import Masker
    from ratchet.materializer.receive.files.storage import open_storage
    from ratchet.materializer.receive.trial.recognition import Recognised, recognise_place
    from ratchet.materializer.receive.trial.trial import try_source as try_records
    from ratchet.runtime.extensions import ExtensionKind, load

    here = Path.cwd()
    api = place.startswith(("http://", "https://"))
    try:
        wanted = kind if known is None else known.kind
        found = (
            Recognised("langfuse", "the address of an API", place) if api else recognise_place(open_storage(place, here, "PLACE"), wanted)
        )
    except OSError as error:
        raise Retryable(f"{place} cannot be read: {error}") from error
    if known is not None:
        found = replace(found, guesses=(), why="as the loop file says")
    if found.kind is None and given:  # the user knows better
        found = replace(found, kind="jsonl")
    if found.kind is None or (not api and not found.files and not found.path):
        return found, None, None
    guessed = {guess.column: guess.key for guess in found.guesses} if found.kind in ("jsonl", "parquet") else {}
    options: dict[str, Any] = {"base_url": place} if api else {}
    values: dict[str, Any] = {"name": _name(found.path), "kind": found.kind, "mapping": guessed, "options": options}
    if known is not None:
        values = known.model_dump(exclude={"path", "queue"})
    values["mapping"] |= given
    if not api:
        values["path"] = found.path
    try:
        settings = SourceSettings.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"--mapping: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
    masker = Masker(loop.privacy if loop else PrivacySettings())
    now = int(datetime.now(UTC).timestamp() * 1_000_000)
    limits = Limits(now=now, assume_consent=True) if loop is None else limits_of(loop, settings.name if known else "", now)
    limits = replace(limits, mapping=settings.mapping)
    with tempfile.TemporaryDirectory() as state:
        since = {"since": datetime.now(UTC) - timedelta(days=1)} if api else {}
        source = load(ExtensionKind.SOURCE, found.kind).create(settings, here, Path(state), options=options | since, where="options")
        skipped = loop.holdout.skipped if loop else ()
        trial = try_records(source, limits, masker.mask, masker.masked_value, skipped)
    block = source_block(settings) if known is None else f"{_mapping(settings)}\n" if given else None
    return found, trial, block


def _name(path: str) -> str:
    """Return a name for the source from the last part of its place."""
    text = re.sub(r"[^a-z0-9]+", "-", path.rstrip("/").rsplit("/", 1)[-1].lower().partition(".")[0]).strip("-")[:40].strip("-")
    return text or "traces"


def _mapping(settings: SourceSettings) -> str:
    pairs = ", ".join(f"{column} = {json.dumps(key, ensure_ascii=False)}" for column, key in settings.mapping.items())
    return f"mapping = {{ {pairs} }}"


def source_block(settings: Any) -> str:
    """Return the section of a loop file for a source."""
    lines = ["[[sources]]", f"name = {json.dumps(settings.name)}", f"kind = {json.dumps(settings.kind)}"]
    if settings.path is not None:
        path = settings.path if "://" in settings.path else str(Path(settings.path).absolute())
        lines.append(f"path = {json.dumps(path, ensure_ascii=False)}")
    if settings.mapping:
        lines.append(_mapping(settings))
    if settings.options:
        lines += ["", "[sources.options]", *(f"{key} = {json.dumps(value)}" for key, value in settings.options.items())]
    return "\n".join(lines) + "\n"


def _as_json(found: Recognised, trial: SourceTrial | None, block: str | None, given: Mapping[str, str]) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "kind": found.kind,
        "why": found.why,
        "mapping": [
            {"column": one.column, "key": one.key, "sure": one.sure, "why": one.why} for one in found.guesses if one.column not in given
        ],
        "doubts": [{"column": one.column, "key": one.key, "why": one.why} for one in found.doubts],
        "others": {kind: list(names) for kind, names in found.others.items()},
        "given": dict(given),
        "unread": [{"file": file.name, "why": file.why} for file in (trial.unread if trial else found.unread)],
        "block": block,
    }
    if trial is None:
        return answer | {"kept": 0}
    return answer | {
        "complete": trial.complete,
        "kept": trial.kept,
        "skipped": dict(trial.skipped),
        "quarantined": [{"reason": reason, "detail": detail, "records": n} for (reason, detail), n in trial.quarantined.items()],
        "coverage": vars(trial.coverage),
        "repeated": trial.repeated,
        "opening": trial.opening,
        "examples": [{"position": one.position, "record": one.record, "read": _read(one)} for one in trial.examples],
    }


_SHOWN = ("id", "time", "user", "session", "messages", "answer", "tools", "model", "status", "consent", "reference")


def _read(example: Example) -> dict[str, Any]:
    """Return the columns of a row that were read, times as ISO 8601."""
    row = {key: example.row[key] for key in _SHOWN if example.row.get(key) is not None}
    return row | {"time": datetime.fromtimestamp(row["time"] / 1_000_000, UTC).isoformat(), "consent": example.consent}


def _show(
    place: str,
    found: Recognised,
    trial: SourceTrial | None,
    block: str | None,
    given: Mapping[str, str],
    *,
    assumed: bool,
    is_known: bool,
) -> None:
    say(f"{place}: {f'a source of the kind {found.kind} reads it' if found.kind else 'no kind of source reads it'} ({found.why})")
    if found.guesses:
        rows = [
            [one.column, given.get(one.column, one.key), *(("given", "") if one.column in given else (one.sure, one.why))]
            for one in found.guesses
        ]
        table("Mapping", ["column", "key", "how sure", "why"], rows)
    for kind, names in found.others.items():
        say(f"files of several kinds lie here; move those of the kind {kind} to a folder and a source of their own: {', '.join(names[:3])}")
    for doubt in found.doubts:
        say(f"{doubt.key} is not read as {doubt.column}: {doubt.why}")
    _hints(found, given)
    if trial is None:
        if found.unread:
            say(unread_text(found.unread))
        say("If you know which kind of source it is, give --kind; if you know the keys, give --mapping COLUMN=KEY.")
        return
    part = "" if trial.complete else " (the first part; the place is larger)"
    table(
        f"What would be read{part}",
        ["outcome", "reason", "records"],
        [
            ["kept", "", trial.kept],
            *(["skipped", reason, n] for reason, n in sorted(trial.skipped.items())),
            *(["quarantined", f"{reason}: {detail}"[:_TEXT], n] for (reason, detail), n in sorted(trial.quarantined.items())),
        ],
    )
    if trial.coverage.calls:
        table(f"Of {trial.coverage.calls} calls", ["have", "calls", ""], _coverage(trial.coverage, assumed))
    for finding in (trial.repeated, trial.opening):
        if finding:
            say(finding)
    for example in trial.examples:
        table(
            f"Record: {example.position}",
            ["in the file", "read"],
            [[_cut(example.record, 12, _TEXT // 2), _cut(_read(example), 12, _TEXT // 2)]],
        )
    if trial.unread:
        say(unread_text(trial.unread))
    if trial.kept and block is not None:
        say("Write this in the source of the loop file:" if is_known else "Add this to a loop file:")
        say("")
        say(block)
    elif not trial.kept:
        say("No record would be kept. Correct what the table names, or give another --kind or --mapping.")


def _hints(found: Recognised, given: Mapping[str, str]) -> None:
    """Say what the user has to decide: columns without a key, right answers, and rewards."""
    from ratchet.materializer.receive.trial.guess import REFERENCES, REWARDS, ends_with_answers

    columns = {one.column for one in found.guesses} | given.keys()
    if not found.guesses and not given:
        return
    missing = [column for column in ("id", "timestamp", "messages", "response") if column not in columns]
    asked = given.get("messages") or next((one.key for one in found.guesses if one.column == "messages"), None)
    if asked is not None and "response" in missing and ends_with_answers(found.rows, asked):
        missing.remove("response")
        say(f"the answer is the last message of {asked}")
    if missing:
        say(f"no key was found for {', '.join(missing)}; name it, for example with --mapping {missing[0]}=KEY")
    if "id" in missing:
        say("records without an id: --mapping id=# takes the digest of the record, so that equal records are stored once")
    if "timestamp" in missing:
        say("records without a time: --mapping timestamp==2026-01-31 states one time for all of them")
    keys = sorted({key for row in found.rows[:20] for key in row if key not in set(given.values()) | {one.key for one in found.guesses}})
    for key in keys:
        if REFERENCES.fullmatch(key) and "reference" not in columns:
            say(f"if {key} holds answers that are known to be right, add --mapping reference={key}")
        if REWARDS.fullmatch(key):
            say(
                f"if {key} is a reward of an earlier labelling, add [sources.options.reward] with column = {json.dumps(key)} (kind parquet)"
            )
    say("a wrong key is corrected with --mapping COLUMN=KEY")


def _coverage(found: Coverage, assumed: bool) -> list[list[object]]:
    consent = "".join(f"{n} {what}; " for n, what in ((found.refused, "refuse"), (found.unstated, "do not say")) if n)
    rule = 'their content is kept only with governance.consent = "assumed"' if assumed and found.unstated else ""
    return [
        ["consent", found.consent, "; ".join(filter(None, [_stated_in(found), (consent + rule).rstrip("; ")]))],
        ["user", found.user, found.places.get("user", "") if found.user else "limits per user and erasure need it"],
        ["session", found.session, found.places.get("session", "")],
        ["tools", found.tools, ""],
        ["feedback", found.feedback, "ratings and corrections" if found.feedback else "no rating and no correction"],
        ["reference", found.reference, f"{found.late_reference} more come with later records of calls" if found.late_reference else ""],
    ]


def _stated_in(found: Coverage) -> str:
    """Return the places of consents and of refusals."""
    named = ((found.places.get("consent"), ""), (found.places.get("refusal"), "refusals: "))
    return "; ".join(f"{about}{where}" for where, about in named if where)


_FIRST = re.compile(
    r"^(id|.*(time|date|created).*|.*(message|prompt|input|question|query|response|output|completion|answer|reply|user|session|consent|feedback|"
    r"rating|correct|metadata|resource).*)$",
    re.IGNORECASE,
)
"""Keys of a record that are shown before the others."""


def _cut(value: Any, most: int, length: int) -> str:
    """Return the most telling keys of an object with their values, one per line, each cut."""
    items = list(value.items()) if isinstance(value, dict) else [("", value)]
    items.sort(key=lambda item: _FIRST.search(str(item[0])) is None)
    lines = [f"{key}: {_short(item, length)}" if key else _short(item, length) for key, item in items[:most]]
    return "\n".join([*lines, f"… {len(items) - most} more keys"] if len(items) > most else lines)


def _short(value: Any, length: int) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    flat = " ".join(text.split())
    return flat if len(flat) <= length else f"{flat[:length]}…"
