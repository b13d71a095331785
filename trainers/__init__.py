"""Training methods: the choice of a method, recipes, and job specifications.

This package does not load torch. Only `trainers.job` does, within the job.
"""
