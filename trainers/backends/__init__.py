"""Training backends seen from the service: a plan becomes a job specification. Never loads torch."""
