"""GRPO on NVIDIA NeMo RL, inside its container: the process that watches a run, the run itself, its data, reward and checkpoints.

Whatever imports `ray`, `nemo_rl` or torch at the top is loaded only where the release is: `launcher`, `dataset`, `reward`.
"""
