"""GRPO, SFT and DPO on NVIDIA NeMo RL seen from the service: recipe, arithmetic, configuration and known keys."""
