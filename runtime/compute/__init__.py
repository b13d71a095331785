"""Engines of the port `Compute`: in this process, in worker processes, and on a Ray cluster."""
