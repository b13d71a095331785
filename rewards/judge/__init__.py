"""Scorers that let a language model grade answers, over any OpenAI-compatible API.

Each verdict is recorded before anything uses it (`records.py`), so that a snapshot depends on recorded rows only. A judge counts only while
it is believed: it resists the probes, and it agrees with people's labels (`Judge.calibrate` in `reward.py`).
"""
