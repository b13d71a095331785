"""Prefect integration: scheduling, run history and approval forms. The flows only call the engine; all decisions are in the ledger."""
