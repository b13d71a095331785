"""Code that the service and the jobs share at run time: artifacts, run folders, manifests, process identity. Imports only contracts."""
