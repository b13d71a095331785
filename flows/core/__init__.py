"""Pure decisions over folded ledger rows: contracts in, decisions out. Uses no clock, no I/O and no randomness."""
