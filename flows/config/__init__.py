"""Reads loop files: TOML in, a validated `Loop` out. Every error names the file, the key and the nearest known key."""
