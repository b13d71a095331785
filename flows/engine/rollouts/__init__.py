"""Performs rollouts: ticks, mirrored prompts, shared processes, and the way back."""
