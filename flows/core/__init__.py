"""Pure decisions over folded ledger rows: contracts in, decisions out. No clock, no I/O, no randomness of its own."""
