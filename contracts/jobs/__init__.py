"""Training jobs: plan, state and cost, the cluster that they run on, and their exit codes."""
