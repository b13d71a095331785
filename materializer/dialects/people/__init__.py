"""Reads who a call belongs to and what its user has said about it, wherever a library writes it."""
