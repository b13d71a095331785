"""A Kubernetes cluster for tests, on this machine and without a container engine or a registry: a real control plane with Volcano, nodes
that only pretend (kwok) and nodes whose pods are real processes. It knows nothing of the product that is tested on it."""
