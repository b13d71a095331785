"""The ends at which a server of a model stops, and a tokenizer with an end and padding, for the training jobs and the embedded server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def with_ends(tokenizer: Any, folder: Path) -> Any:
    """Return the loaded tokenizer of the model in `folder`, changed in memory only.

    If it names no end of a sequence, it gets one at which a server stops. If it has no padding, it is padded with its end.
    """
    stops = sorted(stop_tokens(folder, tokenizer))
    if tokenizer.eos_token_id is None and stops:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(stops[0])
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def stop_tokens(folder: Path, tokenizer: Any) -> set[int]:
    """Return the ids of the tokens at which a server of the model in `folder` ends an answer."""
    found = {tokenizer.eos_token_id} - {None}
    given = read_config(folder / "generation_config.json").get("eos_token_id", read_config(folder / "config.json").get("eos_token_id"))
    return found | {token for token in (given if isinstance(given, list) else [given]) if isinstance(token, int)}


def read_config(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a model folder; empty if there is no file, or no object in it."""
    found = json.loads(path.read_bytes()) if path.exists() else {}
    return found if isinstance(found, dict) else {}
