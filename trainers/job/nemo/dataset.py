"""Dataset class and data processor for NeMo RL. The module is imported only in the container of the release.

The processors of the release use only the first message as the prompt. This processor renders the whole conversation with the chat
template as one text, in a single message of the log. So no earlier assistant turn is treated as an answer to train on.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nemo_rl.data.datasets.raw_dataset import RawDataset

from ratchet.trainers.job.prompt_length import own_call_format, rendered_prompt

TASK = "ratchet"
"""Task name of all rows."""


class Prompts(RawDataset):
    """Dataset from a JSONL file of `ratchet.trainers.job.nemo.data`.

    The release passes its whole data section; all arguments except the path are ignored.
    """

    def __init__(self, data_path: str, **_: Any) -> None:
        from datasets import Dataset

        self.task_name = TASK
        self.val_dataset = None
        lines = Path(data_path).read_text(encoding="utf-8").splitlines()
        self.dataset = Dataset.from_list([_flat(json.loads(line)) for line in lines])


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its messages as JSON text, because messages of different structure do not fit one Arrow schema."""
    texts = {"prompt": json.dumps(row["prompt"]), "tools": json.dumps(row.get("tools", []))}
    return {"prompt_id": row["prompt_id"], **texts, "reference": row["reference"], "task_name": TASK}


def process(datum_dict: dict[str, Any], task_data_spec: Any, tokenizer: Any, max_seq_length: int, idx: int) -> dict[str, Any]:  # noqa: ARG001
    """Return one row of a batch: the tokens of the rendered prompt, and the data that the reward environment needs.

    `token_ids` is an int64 tensor of shape [tokens]. A prompt longer than `max_seq_length` tokens is truncated and masked with the loss
    multiplier 0, as in the release.
    """
    messages, tools = json.loads(datum_dict["prompt"]), json.loads(datum_dict.get("tools", "[]"))
    form = own_call_format(tokenizer) if tools else None
    calls = {"calls": asdict(form)} if form else {}
    text = rendered_prompt(tokenizer, messages, tools)
    tokens = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"][0]
    whole = len(tokens) <= max_seq_length  # normally ensured by data.short
    tokens = tokens if whole else tokens[: min(4, max_seq_length)]
    return {
        "message_log": [{"role": "user", "content": text, "token_ids": tokens}],
        "length": len(tokens),
        "extra_env_info": {"prompt_id": datum_dict["prompt_id"], "prompt": messages, "reference": datum_dict["reference"], **calls},
        "loss_multiplier": 1.0 if whole else 0.0,
        "idx": idx,
        "task_name": datum_dict["task_name"],
    }
