"""Loads the tokenizer of the start model."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ratchet.runtime.tokenizer import with_ends


def load_tokenizer(folder: Path, **options: Any) -> Any:
    """Return the tokenizer of the model in `folder`, with an end and padding (`with_ends`). `options` are those of the library.

    Custom code in the folder is never run.
    """
    from transformers import AutoTokenizer

    return with_ends(AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **options), folder)


def hide_torch() -> None:
    """Let Transformers load tokenizers without torch in this process, which takes a quarter of the time. It cannot load models any more."""
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # else it warns that torch is missing
    sys.modules["torch"] = None  # type: ignore[assignment]
