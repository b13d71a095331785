"""One machine: jobs as subprocesses, model servers over HTTP, a weighted router. The twin of a cluster behind the same ports."""
