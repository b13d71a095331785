"""A Kubernetes test cluster ("rig") on the local machine, without a container engine or a registry.

It has a real control plane with Volcano, simulated nodes (kwok), and real nodes whose pods are real processes. The package does not depend
on the code under test.
"""
