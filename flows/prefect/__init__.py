"""Prefect integration: one flow run per cycle, approval forms, schedules and events. The ledger decides; Prefect shows."""
