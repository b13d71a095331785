"""Pure rendering of Kubernetes objects: gangs, namespaces, policies, pools and model servers."""
