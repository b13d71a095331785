"""The append-only truth in SQLite (one machine) or Postgres (a team): streams of hash-chained rows, compare-and-set
appends, leases with epochs. Knows rows, not what they mean."""
