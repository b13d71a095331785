"""Dataset class and data processors of SFT and DPO for NeMo RL. The module is imported only in the container of the release.

A row is a prompt and its answers as tokens, which the job has rendered (`offline_rows.py`). In the log of a row, the prompt is one message
and the answer another, so the release trains on the tokens of the answer only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from nemo_rl.data.datasets.raw_dataset import RawDataset

from ratchet.trainers.job.nemo.offline_rows import ORDER, TASK


class Run(RawDataset):
    """All rows of a run, in the order in which it trains on them.

    The release passes its whole data section; all arguments except the path are ignored.
    """

    def __init__(self, data_path: str, **_: Any) -> None:
        from datasets import Dataset

        self.task_name = TASK
        self.val_dataset = None
        path = Path(data_path)
        rows = Dataset.from_json(str(path), cache_dir=str(path.with_name("cache")))  # a mapped file: the rows may be larger than the memory
        self.dataset = rows.select(json.loads(path.with_name(ORDER).read_bytes()))


def answer(datum_dict: dict[str, Any], task_data_spec: Any, tokenizer: Any, max_seq_length: int, idx: int, **_: Any) -> dict[str, Any]:  # noqa: ARG001
    """Return one row of a batch of SFT."""
    log, length = _log(datum_dict["prompt"], datum_dict["chosen"])
    return {"message_log": log, "length": length, "extra_env_info": None, "loss_multiplier": 1.0, "idx": idx, "task_name": TASK}


def pair(datum_dict: dict[str, Any], task_data_spec: Any, tokenizer: Any, max_seq_length: int, idx: int) -> dict[str, Any]:  # noqa: ARG001
    """Return one row of a batch of DPO, with a log for each answer."""
    chosen, length_chosen = _log(datum_dict["prompt"], datum_dict["chosen"])
    rejected, length_rejected = _log(datum_dict["prompt"], datum_dict["rejected"])
    return {
        "message_log_chosen": chosen,
        "message_log_rejected": rejected,
        "length_chosen": length_chosen,
        "length_rejected": length_rejected,
        "loss_multiplier": 1.0,
        "idx": idx,
        "task_name": TASK,
    }


def _log(prompt: Sequence[int], answer: Sequence[int]) -> tuple[list[dict[str, Any]], int]:
    messages = [
        {"role": role, "content": "", "token_ids": torch.tensor(ids, dtype=torch.int64)}
        for role, ids in (("user", prompt), ("assistant", answer))
    ]
    return messages, len(prompt) + len(answer)
