"""Tries a file or folder before a line reads it: what it is, what would be read from it, and the source to configure. Changes nothing."""
