"""Scorers of answers. Labelling, GRPO, the probe and the gate use the same implementations.

This package depends on contracts only. Its imports are lightweight, because training jobs load it too.
"""
