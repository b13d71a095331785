"""Stand-in for the stock entry point."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from nemo_rl.algorithms.dpo import dpo_train
from nemo_rl.data import utils
from run_grpo import offline


def main() -> None:
    config, data = offline()
    dpo_train(config, data.dataset, utils.preference_preprocessor)


if __name__ == "__main__":
    main()
