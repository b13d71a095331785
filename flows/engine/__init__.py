"""Turns decisions into effects and effects into rows: observe, decide, perform, record. Reaches every room through
ports only; wiring.py is the one file that imports the rooms."""
