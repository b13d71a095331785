"""Ports for one machine: jobs as subprocesses, model servers over HTTP, and a weighted router.

The package `k8s` is the counterpart for a cluster.
"""
