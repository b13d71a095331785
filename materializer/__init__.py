"""Turns traces into training sets, and measures live metrics.

The package holds the trace sources, decoders, lake, governance, holdout split, labels, pairs and probe. It depends on `contracts`,
`runtime` and `rewards` only. It does not decide whether to train, and it does not write to the ledger.
"""
