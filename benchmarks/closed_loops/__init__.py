"""Closed loops on simulated people: tasks, traffic, the line, oracles, and the picture of the results."""
