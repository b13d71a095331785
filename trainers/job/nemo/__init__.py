"""GRPO on NVIDIA NeMo RL, inside its container: the trainer process, the launcher, and the data, rewards and checkpoints of a run.

The modules `launcher`, `dataset` and `reward` need the release with `ray`, `nemo_rl` and torch. They are imported only in its container.
"""
