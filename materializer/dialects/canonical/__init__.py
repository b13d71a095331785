"""Builds the canonical form of a conversation from the parts, messages and tools of all dialects."""
