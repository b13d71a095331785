"""Implements the executor, server and router ports on one machine: subprocess jobs, HTTP model servers and a weighted router.

The package `k8s` is the counterpart for a cluster.
"""
