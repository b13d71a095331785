"""DPO, SFT and GRPO on TRL inside a training job. Loads torch."""
