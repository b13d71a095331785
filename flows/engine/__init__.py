"""Executes decisions and records them as ledger rows: observe, decide, perform, record.

The engine uses the other packages through ports only. flows/composition selects the implementations.
"""
