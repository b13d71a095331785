"""Prefect as scheduler, user interface and approval surface: thin flows over the engine. The ledger decides."""
