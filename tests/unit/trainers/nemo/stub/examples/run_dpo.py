"""Stand-in for the stock entry point."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from nemo_rl.algorithms.dpo import dpo_train
from nemo_rl.data import utils
from run_grpo import load


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    config = load(Path(parser.parse_args().config))
    settings = config["data"]["train"]
    module, _, name = settings["dataset_name"].rpartition(".")
    data: Any = getattr(importlib.import_module(module), name)(**settings)
    data.set_task_spec(settings)
    dpo_train(config, data.dataset, utils.preference_preprocessor)


if __name__ == "__main__":
    main()
