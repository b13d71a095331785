"""Decisions about a rollout from its evidence. Pure."""
