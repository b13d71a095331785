"""The router in a pod of a cluster: one of several replicas that answer for the same lines."""
