"""What ingest does with bad input: counts add up, no record stops another, nothing is lost, and the peak of memory stays.

Each case is a file with good records among bad bytes. The good ones must be kept, and read = kept + duplicate + skipped + quarantined.

`python benchmarks/ingest_bad_input.py [--tiny 1000000] [--gigabytes 1]`
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from ingest import HERE, code, ingest_and_count, write
from ingest_corpus import Corpus

GOOD = 1000
_TINY = b'{"id":"%d","timestamp":1780000000,"messages":[{"role":"user","content":"q"}],"response":"a","consent":true}\n'


def good() -> list[bytes]:
    """Return good records as lines."""
    return list(Corpus(GOOD).lines())


def among(bad: Iterable[bytes]) -> Iterator[bytes]:
    """Yield good lines with bad ones in their midst."""
    lines = good()
    yield from lines[: GOOD // 2]
    yield from bad
    yield from lines[GOOD // 2 :]


def changed(**keys: Any) -> bytes:
    """Return a record with other values."""
    record = json.loads(next(Corpus(1, seed=9).lines())) | {"id": "changed"} | keys
    return json.dumps(record).encode() + b"\n"


def long_line(gigabytes: float) -> Iterator[bytes]:
    """Yield a line of this length."""
    yield b'{"id": "long", "messages": "'
    for _ in range(int(gigabytes * 1024)):
        yield b"x" * (1 << 20)
    yield b'"}\n'


def cut_gzip(path: Path) -> None:
    """Write a gzip file without its end."""
    data = gzip.compress(b"".join(good()))
    path.write_bytes(data[: len(data) // 2])


def cut_zstd(path: Path) -> None:
    """Write a zstd file without its end."""
    with pa.CompressedOutputStream(str(path), "zstd") as stream:
        stream.write(b"".join(good()))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cases(tiny: int, gigabytes: float) -> dict[str, tuple[Callable[[Path], object], int | None, int | None]]:
    """Return name -> (how its file is written, number of traces to keep, number to quarantine); None: not known before."""

    def lines(bad: Callable[[], Iterable[bytes]], kept: int = GOOD, wrong: int | None = 1) -> tuple[Any, int, int | None]:
        return lambda path: write(path, among(bad())), kept, wrong

    surrogate = changed(response="x").replace(b'"x"', b'"\\ud800"')
    return {
        "one line of a gigabyte": lines(lambda: long_line(gigabytes)),
        "UTF-16": lines(lambda: ['{"id": "u"}\n'.encode("utf-16") + b"\n"], wrong=2),
        "Latin-1": lines(lambda: [changed(response="caf\u00e9").replace(b"\\u00e9", b"\xe9")]),
        "NUL bytes": lines(lambda: [b"\x00" * 1000 + b"\n", changed(response="a\u0000b")], kept=GOOD + 1),
        "year 9999": lines(
            lambda: [changed(timestamp="9999-12-31T23:59:59Z"), changed(timestamp=10**21), changed(timestamp="0001-01-01")], wrong=3
        ),
        "lone surrogate": lines(lambda: [surrogate]),
        "no end of the last line": (lambda path: path.write_bytes(b"".join(good())[:-40]), GOOD - 1, 1),
        "deep nesting": lines(lambda: [b"[" * 100_000 + b"\n", b'{"a":' * 50_000 + b"\n"], wrong=2),
        "gzip without its end": (cut_gzip, None, None),
        "zstd without its end": (cut_zstd, None, None),
        f"{tiny:,} tiny records": (lambda path: write(path, (_TINY % number for number in range(tiny))), tiny, 0),
        f"{tiny:,} empty objects": (lambda path: write(path, among([b"{}\n"] * tiny)), GOOD, tiny),
    }


def traces_of(report: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of the traces."""
    return {key: report["traces"][key] for key in ("read", "kept", "duplicate", "skipped", "quarantined", "reasons")}


def checked(report: dict[str, Any], kept: int | None, wrong: int | None) -> None:
    """Raise ClickException if the counts do not add up, or are not the expected ones."""
    for counts in (report["traces"], report["feedback"]):
        if counts["read"] != counts["kept"] + counts["duplicate"] + counts["skipped"] + counts["quarantined"]:
            raise click.ClickException(f"the counts do not add up: {counts}")
    traces = traces_of(report)
    if (kept is not None and traces["kept"] != kept) or (wrong is not None and traces["quarantined"] != wrong):
        raise click.ClickException(f"expected {kept} kept and {wrong} quarantined: {traces}")


def growing(folder: Path) -> dict[str, Any]:
    """Ingest a file, and again after each time that it has grown, once in the middle of a line."""
    data, file, found = b"".join(good()), folder / "growing.jsonl", list[dict[str, Any]]()
    for end in (len(data) // 3, len(data) // 2, len(data)):
        file.write_bytes(data[:end])
        figures, report = ingest_and_count(file, folder / "home", new=end == len(data) // 3)
        checked(report, None, None)
        found.append(figures | {"traces": traces_of(report)})
    kept = sum(one["traces"]["kept"] for one in found)
    if kept != GOOD:
        raise click.ClickException(f"{kept} of {GOOD} records of a growing file were kept")
    return {"kept_in_all": kept, "steps": [one["traces"] for one in found], "peak_mb": max(one["peak_mb"] for one in found)}


@click.command()
@click.option("--tiny", default=1_000_000, help="Number of tiny records.")
@click.option("--gigabytes", default=1.0, help="Length of the long line.")
@click.option("--only", multiple=True, help="Part of the name of a case.")
@click.option("--out", type=click.Path(path_type=Path), default=HERE / "results" / "ingest_bad_input.json")
def main(tiny: int, gigabytes: float, only: tuple[str, ...], out: Path) -> None:
    """Ingest all cases, and write the counts and peaks."""
    result: dict[str, Any] = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "code": code(), "cores": os.cpu_count(), "cases": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not only:
            result["cases"]["growing file"] = growing(folder)
        for case, (make, kept, wrong) in cases(tiny, gigabytes).items():
            if only and not any(part in case for part in only):
                continue
            file = folder / "records.jsonl"
            make(file)
            figures, report = ingest_and_count(file, folder / "home")
            checked(report, kept, wrong)
            result["cases"][case] = {"bytes": file.stat().st_size, "traces": traces_of(report)} | figures
            click.echo(f"{case}: {json.dumps(result['cases'][case])}")
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
