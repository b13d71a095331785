"""The append-only ledger in SQLite (one machine) or Postgres (several machines).

It stores streams of hash-chained rows, with compare-and-set appends and leases with epochs. It does not interpret the rows.
"""
