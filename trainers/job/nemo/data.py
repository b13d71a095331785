"""Prompt files for NeMo RL: writes the frozen prompts to two JSONL files, for training and for validation.

Validation uses the development prompts of the plan, which no model of the line is trained on. Without them, its share is selected from the
training prompts by a digest of seed and prompt, so that it is the same in every incarnation. Holdout prompts are never part of
it. The caller provides the function that measures the length of a prompt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.contracts.ids import digest
from ratchet.contracts.jobs.training import LeftOut
from ratchet.runtime.artifacts import write_atomic
from ratchet.trainers.backends.nemo.config import RunCounts
from ratchet.trainers.job.left_out import UNRENDERED
from ratchet.trainers.job.prompt_length import Length

Row = dict[str, Any]
"""A prompt with the keys prompt_id, prompt (messages), reference, slice and, if it has tools, tools."""


def rows(parquet: Path, without_reference: bool = False) -> list[Row]:
    """Return the prompts with their references, sorted by prompt id.

    Prompts without a reference are included only if `without_reference` is set, that is, if some scorer needs none.
    """
    import pyarrow.parquet as pq

    table = pq.read_table(parquet)
    named = "prompt_id" in table.column_names
    found = [
        {
            "prompt_id": row["prompt_id"] if named else digest(row["prompt"]),
            "prompt": row["prompt"],
            "reference": row["reference"],
            "slice": row.get("slice"),
            **({"tools": json.loads(row["tools"])} if row.get("tools") else {}),
        }
        for row in table.to_pylist()
    ]
    found = [row for row in found if without_reference or row["reference"] is not None]
    return [{**row, "prompt": json.loads(row["prompt"])} for row in sorted(found, key=lambda row: str(row["prompt_id"]))]


def short(found: Sequence[Row], length: Length, limit: int) -> tuple[list[Row], LeftOut]:
    """Return the rows whose prompt has at most `limit` tokens, because the release truncates longer prompts to four tokens.

    Also returns the counts of the other rows.
    """
    lengths = [length(row["prompt"], *([row["tools"]] if "tools" in row else [])) for row in found]
    kept = [row for row, tokens in zip(found, lengths, strict=True) if tokens is not None and tokens <= limit]
    refused = lengths.count(None)
    reasons = {UNRENDERED: refused, f"longer than nemo.max_prompt = {limit} tokens": len(found) - refused - len(kept)}
    return kept, LeftOut(what="prompts", rows=len(found), reasons={why: n for why, n in reasons.items() if n})


def split(found: Sequence[Row], wanted: int, seed: int) -> tuple[list[Row], list[Row]]:
    """Split the rows and return (train, validation).

    The validation part has `wanted` rows, but at most a tenth of all rows, so none of fewer than ten rows.
    """
    count = min(wanted, len(found) // 10)
    ranked = sorted(found, key=lambda row: digest([seed, row["prompt_id"]]))
    chosen = {row["prompt_id"] for row in ranked[:count]}
    train = [row for row in found if row["prompt_id"] not in chosen]
    return train, [row for row in found if row["prompt_id"] in chosen]


def write(folder: Path, train: Sequence[Row], validation: Sequence[Row]) -> RunCounts:
    """Write `train.jsonl` and `validation.jsonl` to `folder` and return their numbers of rows."""
    for name, part in (("train", train), ("validation", validation)):
        lines = [json.dumps(row, ensure_ascii=False, sort_keys=True) for row in part]
        write_atomic(folder / f"{name}.jsonl", "".join(line + "\n" for line in lines).encode())
    return RunCounts(train=len(train), validation=len(validation))
