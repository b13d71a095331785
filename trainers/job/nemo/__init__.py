"""GRPO, SFT and DPO on NVIDIA NeMo RL, inside its container: trainer process, launcher, and the data, rewards and checkpoints of a run.

The modules `launcher`, `dataset`, `offline_dataset` and `reward` need the release with `ray`, `nemo_rl` and torch. They are imported only
in its container.
"""
