"""Serving on a cluster: the service's side of the router's replicas, and the model servers."""
