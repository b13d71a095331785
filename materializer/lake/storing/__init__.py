"""Stores batches: which records are stored, exactly once, and what became of each of them."""
