"""Recall, precision and speed of the masking of personal data.

The baseline of recall and precision is the plain search that many pipelines use: one regular expression per kind, without checksums and
without libphonenumber. Both run over the same labelled set (privacy_texts.py) and over lines of many kinds and languages
(privacy_lines.py). The texts of the set are made up; real texts are more varied.

The baseline of the speed is the same rules, one after another in each whole text, as in `search_plainly`. Both mask the same rows
(privacy_rows.py), reading and writing of their JSON included.

`python benchmarks/privacy.py [--texts 8000] [--seed 1] [--rows 100]`
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from privacy_lines import HELD, TUNED, Lines, marked
from privacy_rows import KINDS, rows_of, size_of
from privacy_texts import Labelled, labelled

from ratchet.contracts.ids import digest, digest_file
from ratchet.contracts.loop import PrivacySettings
from ratchet.materializer.privacy.finding import Finding, disjoint
from ratchet.materializer.privacy.masking import Masker, Masking, detectors, rules
from ratchet.materializer.privacy.search import search_plainly

PLAIN: Mapping[str, str] = {
    "email": r"[\w.+-]+@[\w-]+\.[\w.]+",
    "phone": r"\+?\d[\d\s().-]{7,14}\d",
    "card": r"\b(?:\d[ -]?){13,16}\b",
    "iban": r"\b[A-Z]{2}\d{2}[A-Z0-9 ]{11,30}\b",
    "national_id": r"\b\d{3}-\d{2}-\d{4}\b",
    "secret": r"\b(?:sk|ghp|AKIA)[A-Za-z0-9_-]{16,}\b",
    "ip": r"\b\d{1,3}(?:\.\d{1,3}){3}\b",
}
"""Kind -> the regular expression of the baseline."""


def plain(text: str) -> list[Finding]:
    """Return the findings of the baseline."""
    found = (Finding(*match.span(), kind, match.group()) for kind, pattern in PLAIN.items() for match in re.finditer(pattern, text))
    return disjoint(found)


def measured(texts: Sequence[Labelled], find: Callable[[str], Iterable[Finding]]) -> dict[str, Any]:
    """Return recall and precision by kind and by group of texts, and the microseconds per text.

    A label is found if findings of any kind cover it completely. A finding is right if it lies on a label.
    """
    labels, hits, found, right = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    begun = time.process_time()
    results = [list(find(one.text)) for one in texts]
    seconds = time.process_time() - begun
    for one, findings in zip(texts, results, strict=True):
        for start, end, kind in one.labels:
            covered = all(any(each.start <= at < each.end for each in findings) for at in range(start, end) if one.text[at].isalnum())
            labels[kind] += 1
            hits[kind] += covered
            groups[one.group]["labels"] += 1
            groups[one.group]["found"] += covered
        for each in findings:
            on_label = any(each.start < end and start < each.end for start, end, _ in one.labels)
            found[each.kind] += 1
            right[each.kind] += on_label
            groups[one.group]["wrong"] += not on_label
    return {
        "recall": {kind: round(hits[kind] / labels[kind], 4) for kind in sorted(labels)},
        "precision": {kind: round(right[kind] / found[kind], 4) if found[kind] else None for kind in sorted(PLAIN)},
        "recall_all": round(hits.total() / labels.total(), 4),
        "precision_all": round(right.total() / max(1, found.total()), 4),
        "groups": {name: dict(counts) for name, counts in sorted(groups.items())},
        "us_per_text": round(seconds / len(texts) * 1e6, 1),
    }


def missed(texts: Sequence[Labelled], find: Callable[[str], Iterable[Finding]]) -> Iterable[str]:
    """Yield the texts whose labels are not found, and the wrong findings."""
    for one in texts:
        findings = list(find(one.text))
        for start, end, kind in one.labels:
            if not all(any(each.start <= at < each.end for each in findings) for at in range(start, end) if one.text[at].isalnum()):
                yield f"missed {kind}: {one.text!r}"
        for each in findings:
            if not any(each.start < end and start < each.end for start, end, _ in one.labels):
                yield f"wrong {each.kind} {one.text[each.start : each.end]!r}: {one.text!r}"


def by_line(lines: Lines, find: Callable[[str], Iterable[Finding]]) -> dict[str, int]:
    """Return how many lines are masked that must be, and how many that must not."""
    texts = []
    for line in (*lines.masked, *lines.left):
        text, part = marked(line)
        texts.append(Labelled(text, (() if part is None else ((*part, "any"),)), "lines"))
    counts = measured(texts, find)["groups"]["lines"]
    false = sum(1 for line in lines.left if list(find(marked(line)[0])))
    return {"to_mask": len(lines.masked), "masked": counts["found"], "to_leave": len(lines.left), "false_alarms": false}


def speeds(count: int, seed: int) -> dict[str, dict[str, float]]:
    """Return the CPU microseconds for 1,024 characters by kind of text: of the masking, and of the same rules one after another."""
    settings = PrivacySettings()
    masker, selected, found = Masker(settings), rules(settings), dict[str, dict[str, float]]()

    def plainly(row: dict[str, Any]) -> object:
        masking = Masking([lambda text: search_plainly(selected, text)])
        masking.reserve(row.values())
        return masking.content(json.loads(row["messages"])), masking.content(row["answer"])

    for kind in KINDS:
        rows = rows_of(kind, count, random.Random(seed))
        kilobytes = sum(map(size_of, rows)) / 1024
        fast = min(_seconds(masker.mask, rows) for _ in range(5)) / kilobytes * 1e6
        slow = min(_seconds(plainly, rows) for _ in range(2)) / kilobytes * 1e6
        found[kind] = {"us": round(fast, 1), "plainly_us": round(slow, 1), "times_as_fast": round(slow / fast, 1)}
    return found


def _seconds(mask: Callable[[dict[str, Any]], object], rows: Sequence[dict[str, Any]]) -> float:
    copies = [dict(row) for row in rows]
    begun = time.process_time()
    for row in copies:
        mask(row)
    return time.process_time() - begun


@click.command()
@click.option("--texts", "count", default=8000, help="Number of texts.")
@click.option("--seed", default=1, help="Seed of the set.")
@click.option("--rows", "rows", default=100, help="Number of rows of each kind for the speed.")
@click.option("--show", default=0, help="Print so many misses and wrong findings.")
@click.option("--out", type=click.Path(path_type=Path), default=Path(__file__).parent / "results" / "privacy.json")
def main(count: int, seed: int, rows: int, show: int, out: Path) -> None:
    """Measure the masking and the baseline, and write the result."""
    texts = labelled(count, seed)
    finders = detectors(PrivacySettings())

    def find(text: str) -> list[Finding]:
        return disjoint(one for finder in finders for one in finder(text))

    for line, _ in zip(missed(texts, find), range(show), strict=False):
        click.echo(line)
    room = Path(__file__).resolve().parents[1] / "materializer" / "privacy"
    code = digest([[path.name, digest_file(path)] for path in sorted(room.glob("*.py"))])[:12]
    about = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "code": code, "texts": count, "seed": seed}
    lines = {name: {"ratchet": by_line(one, find), "baseline": by_line(one, plain)} for name, one in (("tuned", TUNED), ("held", HELD))}
    result = {
        **about,
        "ratchet": measured(texts, find),
        "baseline": measured(texts, plain),
        "lines": lines,
        "us_per_1024_characters": speeds(rows, seed),
    }
    click.echo(json.dumps(result, indent=2))
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
