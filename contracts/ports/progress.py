"""The callback by which long operations report how far they are."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Callback (activity, items done, items in total) that long operations call from time to time."""
