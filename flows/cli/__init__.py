"""The `ratchet` command line. Each command parses its arguments, calls the engine or a report, and prints the result."""
