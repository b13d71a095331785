"""Suites of tasks that both models are asked in addition to the holdout, each with a margin of its own (`gate.suites`)."""
