"""The permanent holdout split and golden sets.

The split hashes the root of a conversation (its first user message that is a question, normalised) with the line's salt, so that all
turns of a conversation are on the same side. Where near-duplicates are considered, a new root follows a similar one that is known
(prompt_sides.py). A paraphrase in other words is not recognised, and may be on the other side.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import polars as pl

from ratchet.contracts.data.records import PROMPTS
from ratchet.contracts.errors import ConfigError, Rejected
from ratchet.contracts.ids import Digest, SkippedTexts, hash_share, prompt_id, root_id
from ratchet.materializer.dialects.canonical.tools import tools_of
from ratchet.materializer.dialects.conversations.bodies import request_of
from ratchet.materializer.dialects.values import dump, parse_json
from ratchet.materializer.lake.schemas import frame_of
from ratchet.materializer.texts import InMemory, Texts, filled_parts
from ratchet.runtime.collection import without_collection

_PROMPT = ["messages", "tools"]
_IN_MEMORY = InMemory()


def held_out(root: Digest, salt: str, fraction: float) -> bool:
    """Return whether the conversations of a root are holdout. The hash selects a share `fraction` of all roots."""
    return hash_share("holdout", salt, root) < fraction


def identify_prompts(
    prompts: pl.DataFrame, known: pl.DataFrame | None = None, texts: Texts = _IN_MEMORY, skipped: SkippedTexts = ()
) -> pl.DataFrame:
    """Return one row per distinct prompt (messages and tools, both JSON), with prompt_id and root_id.

    `known` is a former result: its prompts need not be identified again. `texts` has the texts of `prompts`, whose column PLACE is kept.
    `skipped` is that of `root_id`.
    """
    distinct = prompts.unique(_PROMPT)
    before = distinct.clear() if known is None else known
    new = distinct.join(before, on=_PROMPT, how="anti", nulls_equal=True)
    prompt_ids, roots = list[Digest](), list[Digest]()
    with without_collection():
        for part in filled_parts(new, texts):
            for text, tools in part.select(_PROMPT).iter_rows():
                parsed = orjson.loads(text)
                prompt_ids.append(prompt_id(parsed, orjson.loads(tools) if tools else ()))
                roots.append(root_id(parsed, skipped))
    new = new.with_columns(pl.Series("prompt_id", prompt_ids, dtype=pl.String), pl.Series("root_id", roots, dtype=pl.String))
    if known is None:
        return new
    found = distinct.join(known.select(*_PROMPT, "prompt_id", "root_id"), on=_PROMPT, nulls_equal=True)
    return pl.concat([found.select(new.columns), new])


def independent(prompts: pl.DataFrame, identified: pl.DataFrame, salt: str) -> pl.DataFrame:
    """Keep the prompts of one conversation of each cluster of near-duplicates, selected by hash.

    `prompts` has the column prompt_id. `identified` maps it to root_id and cluster. The gate counts
    conversations as independent. Variants of one template are not: with them, a test would seem more precise than it is.
    """
    known = identified.select("prompt_id", "root_id", "cluster").unique("prompt_id")
    roots = known.join(prompts.select("prompt_id"), on="prompt_id", how="semi").select("root_id", "cluster").unique()
    rank = pl.Series("rank", [hash_share("independent", salt, root) for root in roots["root_id"].to_list()], dtype=pl.Float64)
    chosen = roots.with_columns(rank).sort("rank", "root_id").unique("cluster", keep="first", maintain_order=True)
    return prompts.join(known.join(chosen, on="root_id", how="semi"), on="prompt_id", how="semi", maintain_order="left")


def choose_edition(prompts: pl.DataFrame, number: int, salt: str, most: int) -> pl.DataFrame:
    """Select at most `most` prompts for edition `number` by hash. If there are more than `most`, each number gives its own selection."""
    if len(prompts) <= most:
        return prompts
    ranks = [hash_share("edition", salt, number, identity) for identity in prompts["prompt_id"].to_list()]
    return prompts.with_columns(pl.Series("rank", ranks)).sort("rank", "prompt_id").head(most).drop("rank")


def read_golden(path: Path, skipped: SkippedTexts = ()) -> pl.DataFrame:
    """Read a golden set and return it as records.PROMPTS plus the column root_id.

    The file has one object {prompt | question | messages, reference, slice?} per line. `skipped` is that of `root_id`. Raises ConfigError
    with the line number for a line that cannot be read. A golden set is written by hand, so errors are reported instead of skipped.
    """
    rows = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"holdout.golden: {path} cannot be read: {error.strerror}; correct the path in the loop file") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            row = _golden_row(line, f"{path}, line {number}", skipped)
            rows[row["prompt_id"]] = row
    if not rows:
        raise ConfigError(f"holdout.golden: {path} has no prompts; add prompts to the file, or remove the key")
    ordered = [rows[key] for key in sorted(rows)]
    return frame_of(ordered, PROMPTS).with_columns(pl.Series("root_id", [row["root_id"] for row in ordered]))


def _golden_row(line: bytes, where: str, skipped: SkippedTexts) -> dict[str, Any]:
    try:
        record = parse_json(line)
        asked = next((record[key] for key in ("messages", "prompt", "question") if record.get(key)), None)
        request = request_of([{"role": "user", "content": asked}] if isinstance(asked, str) else asked)
        messages = request.messages if request else []
        tools = tools_of(record.get("tools"))
    except (Rejected, AttributeError) as error:
        raise ConfigError(f"holdout.golden: {where} cannot be read: {error}") from error
    reference = record.get("reference")
    if isinstance(reference, bool | dict | list):
        reference = dump(reference)
    if not messages or not isinstance(reference, str | int | float):
        raise ConfigError(f"holdout.golden: {where} needs a prompt (prompt, question or messages) and a reference")
    return {
        "prompt_id": prompt_id(messages, tools),
        "root_id": root_id(messages, skipped),
        "prompt": orjson.dumps(messages).decode(),
        "reference": str(reference),
        "reference_kind": "reference",
        "slice": record.get("slice"),
        "tools": dump(tools) if tools else None,
    }
