"""Scores one answer: the same objects serve labelling, GRPO, the probe and the gate.

Knows contracts only: no lake, no frames, no trainer. Imports stay light, because training jobs load it too.
"""
