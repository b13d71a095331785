"""The committed result of the conformance suite (`benchmarks/results/nemo_rl.json`), and its table in `docs/nemo_rl.md`.

`make nemo` writes both. Each case has the digest of the code with which it ran, so a part of the suite can be run again. A test of
`make test` fails if that code has changed since, or if a case of the suite has no result.

    python -m tests.nemo.results        writes the table again
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.contracts.ids import digest, digest_file
from ratchet.runtime.artifacts import write_atomic
from tests.command import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "nemo_rl.json"
PAGE = ROOT / "docs" / "nemo_rl.md"
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
CODE = ("trainers/backends/nemo", "trainers/job/nemo")
"""Folders whose code the result is about."""
COMMAND = "RATCHET_NEMO_RL=FOLDER make nemo"
NOT_RUN = {
    "asynchronous GRPO": "a loop file cannot ask for it: the reward actor needs whole groups; the release's loop needs vLLM",
    "dedicated generation": "its weights go over NCCL between GPUs, which has no stand-in; the rendered file is checked by the loader",
    "packed sequences and bf16": "the release packs with flash attention, which has GPU kernels only",
    "FP8, context parallelism and other overrides": "they need GPUs; keys and types are checked, and plans name them as never proven",
    "Megatron and pipeline parallelism": "overrides refuse them: checkpoints of DTensor alone are read and published",
    "the image": "it cannot be pulled or built here",
}
"""What the suite does not run -> the reason."""


def code_digest() -> str:
    """Return the digest of the code whose behaviour the suite shows, 12 characters."""
    files = [path for folder in CODE for path in sorted((ROOT / folder).iterdir()) if path.suffix in (".py", ".json")]
    return digest([[path.relative_to(ROOT).as_posix(), digest_file(path)] for path in files])[:12]


def release_of(root: Path) -> str:
    """Return the version of the release in `root`, with the digest of its sources."""
    text = (root / "nemo_rl" / "package_info.py").read_text(encoding="utf-8")
    numbers = [re.search(rf"^{part} = (\d+)", text, re.MULTILINE) for part in ("MAJOR", "MINOR", "PATCH")]
    sources = [[path.relative_to(root).as_posix(), digest_file(path)] for path in sorted((root / "nemo_rl").rglob("*.py"))]
    return f"{'.'.join(found[1] for found in numbers if found)} ({digest(sources)[:12]})"


def functions() -> list[str]:
    """Return the names of all cases of the suite, without parameters."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(Path(__file__).parent.glob("test_*.py"))]
    return [node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def title(case: str) -> str:
    """Return the words of a case's name: `test_a_b[c]` gives `a b (c)`."""
    name, _, parameters = case.partition("[")
    words = name.removeprefix("test_").replace("_", " ")
    return f"{words} ({parameters.rstrip(']').replace('_', ' ')})" if parameters else words


def read() -> dict[str, dict[str, Any]]:
    """Return case -> row of the committed result."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    return {row["case"]: row for row in rows}


def record(case: str, outcome: str, seconds: float, release: str, figures: Mapping[str, Any], reason: str) -> None:
    """Write the row of one case in place of its former row. Rows of cases that no longer exist are removed."""
    row = {"case": case, "outcome": outcome, "seconds": round(seconds, 1), "date": f"{datetime.now(UTC):%Y-%m-%d}", "release": release}
    told = {"reason": reason} if reason else {}
    known = read() | {case: {**row, "code": code_digest(), "figures": dict(figures), **told}}
    current = set(functions())
    rows = [known[name] for name in sorted(known) if name.partition("[")[0] in current]
    write_atomic(RESULTS, ("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n").encode())


def table() -> str:
    """Return the section of the page: one line per case, and what was not run."""
    rows = list(read().values())
    passed = sum(row["outcome"] == "passed" for row in rows)
    codes, dates = sorted({row["code"] for row in rows}), sorted({row["date"] for row in rows})
    releases = sorted({row["release"] for row in rows})
    dated = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    lines = [
        f"Release {', '.join(releases)}, {dated}, code {', '.join(codes)}: {passed} of {len(rows)} cases passed, in"
        f" {sum(row['seconds'] for row in rows) / 60:.0f} minutes on two cores.",
        "",
        "| case | result | seconds | figures |",
        "|---|---|---|---|",
        *(f"| {title(row['case'])} | {row['outcome']} | {row['seconds']:.0f} | {_shown(row)} |" for row in rows),
        *(f"| {name} | not run | | {reason} |" for name, reason in NOT_RUN.items()),
    ]
    return "\n".join(lines)


def _shown(row: Mapping[str, Any]) -> str:
    shown = [f"{name} {_value(value)}" for name, value in row["figures"].items()]
    return "; ".join([*shown, *([row["reason"]] if row.get("reason") else [])]).replace("|", "\\|").replace("\n", " ")


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " → ".join(map(_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def page() -> str:
    """Return the text of the page with the current table."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END, 1)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
