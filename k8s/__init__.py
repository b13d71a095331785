"""A Kubernetes cluster: jobs as gangs, the pools they run on. The twin of local/, behind the same ports."""
