"""Langfuse as a source: the files of its blob export, and its public API."""
