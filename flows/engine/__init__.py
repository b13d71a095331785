"""Executes decisions and records them as ledger rows: observe, decide, perform, record.

The engine uses the other packages through ports only. wiring.py is the only file that imports the implementations.
"""
