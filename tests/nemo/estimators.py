"""Program for the environment of the release: `python estimators.py FOLDER` loads the rendered files in a folder with the release's loader.

It prints, as JSON, the advantage estimator that the release creates for each, and the advantages of a fixed group.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from nemo_rl.algorithms import grpo
from nemo_rl.utils.config import load_config, register_omegaconf_resolvers
from omegaconf import OmegaConf

REWARDS = [0.0, 1.0, 1.0, 1.0]


def created(path: Path) -> dict[str, Any]:
    """Return the class of the estimator for a file, and its advantages for one group with the rewards REWARDS."""
    value: Any = OmegaConf.to_container(load_config(str(path)), resolve=True)
    estimator = grpo._create_advantage_estimator(grpo.MasterConfig(**value))
    prompts, rewards, mask = torch.zeros(4, 1), torch.tensor(REWARDS), torch.ones(4, 1)
    found = estimator.compute_advantage(prompts, rewards, mask)
    return {"estimator": type(estimator).__name__, "advantages": found.squeeze(-1).tolist()}


if __name__ == "__main__":
    register_omegaconf_resolvers()
    print("ANSWER " + json.dumps({path.stem: created(path) for path in sorted(Path(sys.argv[1]).glob("*.yaml"))}))
