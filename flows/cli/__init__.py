"""The `ratchet` command: thin. Each command parses words, calls the engine or a report, and shows the result."""
