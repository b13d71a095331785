"""Loop files: TOML in, a checked `Loop` out. Every complaint names the file, the key and the nearest known key."""
