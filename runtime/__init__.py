"""Code that the service and the jobs share at run time: job protocol, run folders, artifacts, process identity. Imports only contracts."""
