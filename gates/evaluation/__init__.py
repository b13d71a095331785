"""Evaluation of a candidate at the gate: its prompts, their batches, the answers of both models, and the comparison of their rewards."""
