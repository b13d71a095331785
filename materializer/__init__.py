"""Traces to training sets: sources, decoders, the lake, governance, holdout, labels, pairs, probe and live metrics.

Knows contracts and rewards. It never decides whether to train, and keeps no ledger.
"""
