"""Reads the plain records of JSON Lines, which are most of them, in blocks and into columns."""
