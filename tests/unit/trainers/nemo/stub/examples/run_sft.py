"""Stand-in for the stock entry point."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from nemo_rl.algorithms.sft import sft_train
from run_grpo import offline


def main() -> None:
    config, data = offline()
    data.set_processor()
    sft_train(config, data.dataset, data.processor)


if __name__ == "__main__":
    main()
