"""Commands that work on a line, or record a request of an operator: ingest, plan, run, approvals, rollback, trigger, freeze."""
