"""Prompts for the release: from our frozen prompts to two JSONL files, one to train on and one to validate with.

The validation share comes from the training prompts, by a digest of seed and prompt, so that it is the same in every
incarnation; the holdout never gets here. It knows no tokenizer: a prompt's length is measured by whoever calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from contracts.errors import Permanent
from contracts.files import write_atomic
from contracts.ids import digest
from trainers.nemo_config import Counts

Row = dict[str, Any]
"""prompt_id, prompt (messages), reference."""
Length = Callable[[list[dict[str, Any]]], int]
"""Tokens of a conversation as the model will see it."""


def rows(parquet: Path, without_reference: bool = False) -> list[Row]:
    """Prompts with their references; those without one are left out unless `without_reference`: some scorer works without."""
    import pyarrow.parquet as pq

    table = pq.read_table(parquet)
    named = "prompt_id" in table.column_names
    found = [
        {"prompt_id": row["prompt_id"] if named else digest(row["prompt"]), "prompt": row["prompt"], "reference": row["reference"]}
        for row in table.to_pylist()
    ]
    found = [row for row in found if without_reference or row["reference"] is not None]
    return [{**row, "prompt": json.loads(row["prompt"])} for row in sorted(found, key=lambda row: str(row["prompt_id"]))]


def short(found: Sequence[Row], length: Length, limit: int) -> list[Row]:
    """Rows whose prompt has at most `limit` tokens: the release would cut a longer one to four tokens and answer those."""
    kept = [row for row in found if length(row["prompt"]) <= limit]
    if found and not kept:
        raise Permanent(f"every prompt is longer than nemo.max_prompt = {limit} tokens; raise it")
    return kept


def split(found: Sequence[Row], wanted: int, seed: int) -> tuple[list[Row], list[Row]]:
    """(train, validation): `wanted` rows for validation, at most a tenth, none of fewer than ten."""
    count = min(wanted, len(found) // 10)
    ranked = sorted(found, key=lambda row: digest([seed, row["prompt_id"]]))
    chosen = {row["prompt_id"] for row in ranked[:count]}
    train = [row for row in found if row["prompt_id"] not in chosen]
    return train, [row for row in found if row["prompt_id"] in chosen]


def write(folder: Path, train: Sequence[Row], validation: Sequence[Row]) -> Counts:
    """`train.jsonl` and `validation.jsonl`, and how many rows they hold."""
    for name, part in (("train", train), ("validation", validation)):
        lines = [json.dumps(row, ensure_ascii=False, sort_keys=True) for row in part]
        write_atomic(folder / f"{name}.jsonl", "".join(line + "\n" for line in lines).encode())
    return Counts(train=len(train), validation=len(validation))
