"""Folds ledger streams into views: each view is the state that a list of rows describes. Pure; makes no decisions."""
