"""The demo: a task, simulated users and reviewers, and a script that uses the product through its normal interfaces.

All other running parts are the product itself. The seeds are fixed, and the results are computed, not scripted.
"""
