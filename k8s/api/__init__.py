"""Access to the Kubernetes API server: the client port, informers, and quantities."""
