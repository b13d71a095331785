"""Checks before a gang runs: facts about the cluster, schedulability, and findings."""
