"""Our prompts as the release's data set, and the processor that renders whole conversations. Loaded only where the release is.

The release's own processors take the first message for the prompt; ours takes all of them, as one text rendered by the
model's chat template: one message of the log, so that no earlier assistant turn is taken for an answer to learn from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nemo_rl.data.datasets.raw_dataset import RawDataset

TASK = "ratchet"


class Prompts(RawDataset):
    """A JSONL file of `trainers.inside.nemo.data`. The release passes its whole data section; only the path counts."""

    def __init__(self, data_path: str, **_: Any) -> None:
        from datasets import Dataset

        self.task_name = TASK
        self.val_dataset = None
        lines = Path(data_path).read_text(encoding="utf-8").splitlines()
        self.dataset = Dataset.from_list([_flat(json.loads(line)) for line in lines])


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Messages stay JSON text: rows of different shapes do not fit one Arrow schema."""
    return {"prompt_id": row["prompt_id"], "prompt": json.dumps(row["prompt"]), "reference": row["reference"], "task_name": TASK}


def process(datum_dict: dict[str, Any], task_data_spec: Any, tokenizer: Any, max_seq_length: int, idx: int) -> dict[str, Any]:  # noqa: ARG001
    """One row of a batch: the rendered prompt's tokens, and what the reward environment needs to score an answer."""
    messages = json.loads(datum_dict["prompt"])
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    tokens = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"][0]
    whole = len(tokens) <= max_seq_length  # data.short has seen to it; if not, the row is masked out, as the release does
    tokens = tokens if whole else tokens[: min(4, max_seq_length)]
    return {
        "message_log": [{"role": "user", "content": text, "token_ids": tokens}],
        "length": len(tokens),
        "extra_env_info": {"prompt_id": datum_dict["prompt_id"], "prompt": messages, "reference": datum_dict["reference"]},
        "loss_multiplier": 1.0 if whole else 0.0,
        "idx": idx,
        "task_name": datum_dict["task_name"],
    }
