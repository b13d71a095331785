"""Scorers of answers. Labelling, GRPO, the probe and the gate use the same implementations.

This package depends on `contracts` and `runtime` only. Its imports are lightweight, because training jobs load it too.
"""
