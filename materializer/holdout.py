"""Which prompts are for ever holdout, and what identifies a prompt.

The split hashes the conversation's root (its first user message, normalised) with the line's salt, so it needs no memory and
every turn of a conversation lands on the same side. Near-duplicates beyond the normaliser (a paraphrase, a typo) are not
clustered in this version and may lie on both sides. Knows nothing of rewards.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from contracts.errors import ConfigError, Rejected
from contracts.ids import Digest, digest
from contracts.records import PROMPTS
from materializer.fields import parse
from materializer.messages import prompt_of
from materializer.schemas import frame_of

NORMALISER = 1
"""Version of `normalise`. It decides the split, so a change is a new version, never an edit."""


def normalise(text: str) -> str:
    """Version 1: Unicode NFKC, case folded, runs of white space as one blank."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def prompt_id(messages: Sequence[Mapping[str, Any]]) -> Digest:
    """Digest of the normalised conversation."""
    return digest([[str(message["role"]), normalise(str(message["content"]))] for message in messages])


def root_id(messages: Sequence[Mapping[str, Any]]) -> Digest:
    """Digest of the normalised first user message (the first message where no user speaks)."""
    first = next((message for message in messages if message["role"] == "user"), messages[0] if messages else {"content": ""})
    return digest(normalise(str(first["content"])).encode())


def held_out(root: Digest, salt: str, fraction: float) -> bool:
    """Whether a root's conversations are holdout: a share `fraction` of all roots, decided by hash."""
    return share("holdout", salt, root) < fraction


def share(*parts: object) -> float:
    """A number in [0, 1) that looks random and depends on the parts alone."""
    plain = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(plain.encode()).digest()[:7], "big") / (1 << 56)


def identify(messages: pl.Series, salt: str, fraction: float) -> pl.DataFrame:
    """messages (JSON, distinct), prompt_id, root_id, held: one row per distinct value of the series."""
    rows = []
    for text in messages.unique().sort().to_list():
        parsed = orjson.loads(text)
        root = root_id(parsed)
        rows.append((text, prompt_id(parsed), root, held_out(root, salt, fraction)))
    schema = {"messages": pl.String, "prompt_id": pl.String, "root_id": pl.String, "held": pl.Boolean}
    return pl.DataFrame(rows, schema=schema, orient="row")


def choose(prompts: pl.DataFrame, number: int, salt: str, most: int) -> pl.DataFrame:
    """At most `most` prompts for edition `number`, by hash: another number gives another choice where there are enough."""
    if len(prompts) <= most:
        return prompts
    ranks = [share("edition", salt, number, identity) for identity in prompts["prompt_id"].to_list()]
    return prompts.with_columns(pl.Series("rank", ranks)).sort("rank", "prompt_id").head(most).drop("rank")


def read_golden(path: Path) -> pl.DataFrame:
    """A golden set, one {prompt | question | messages, reference, slice?} a line, as records.PROMPTS plus root_id.

    ConfigError, with the line, where one cannot be read: a golden set is written by hand and must be right.
    """
    rows = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"holdout.golden: {path} cannot be read: {error.strerror}; correct the path in the loop file") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            row = _golden_row(line, f"{path}, line {number}")
            rows[row["prompt_id"]] = row
    if not rows:
        raise ConfigError(f"holdout.golden: {path} has no prompts; fill it, or remove the key")
    ordered = [rows[key] for key in sorted(rows)]
    return frame_of(ordered, PROMPTS).with_columns(pl.Series("root_id", [row["root_id"] for row in ordered]))


def _golden_row(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = parse(line)
        asked = next((record[key] for key in ("messages", "prompt", "question") if record.get(key)), None)
        messages = prompt_of([{"role": "user", "content": asked}] if isinstance(asked, str) else asked)
    except (Rejected, AttributeError) as error:
        raise ConfigError(f"holdout.golden: {where} cannot be read: {error}") from error
    reference = record.get("reference")
    if not messages or not isinstance(reference, str | int | float):
        raise ConfigError(f"holdout.golden: {where} needs a prompt (prompt, question or messages) and a reference")
    return {
        "prompt_id": prompt_id(messages),
        "root_id": root_id(messages),
        "prompt": orjson.dumps(messages).decode(),
        "reference": str(reference),
        "reference_kind": "reference",
        "slice": record.get("slice"),
    }
