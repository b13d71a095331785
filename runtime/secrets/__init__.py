"""Secrets of an installation: their files, the keys in them, and the signatures that the router and ingest compute with them."""
