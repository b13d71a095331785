"""Model quality gates: evaluation over HTTP, checks, the model registry, and the judgement of rollout steps."""
