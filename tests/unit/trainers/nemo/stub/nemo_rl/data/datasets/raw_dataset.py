"""Stand-in for the parent class of data sets."""

from __future__ import annotations

from typing import Any

from nemo_rl.data.processors import PROCESSOR_REGISTRY


class RawDataset:
    dataset: Any
    task_name: str

    def set_task_spec(self, data_config: Any) -> None:
        self.data_config = data_config
        self.task_spec = None

    def set_processor(self) -> None:
        self.processor = PROCESSOR_REGISTRY[self.data_config["processor"]]
