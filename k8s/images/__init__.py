"""Definitions of the container images, and the commands that build and push them."""
