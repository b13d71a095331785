"""Erasure: finds the rows of people in a lake, removes them, and removes what stems from them from the artifacts."""
