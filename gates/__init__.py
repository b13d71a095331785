"""Shows that a candidate is better, and keeps watching: evaluation over HTTP, checks, the registry's copy, rollout evidence."""
