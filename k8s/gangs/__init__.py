"""Runs training jobs as gangs of pods: the executor, its submission records, the guardian, metering and logs."""
