"""Dialects of the logs and exports that other tools write to files."""
