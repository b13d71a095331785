"""Stores each batch exactly once, and counts what became of each record."""
