"""Kubernetes backend: runs training jobs as gangs and manages the node pools they run on. It implements the same ports as `local`."""
