"""Ratchet: event-driven continuous training for self-hosted LLMs.

Everything that is installed lives below this package. In the repository the subpackages are folders at the top level, and this folder
links to them; a wheel contains them as ordinary folders. docs/architecture.md explains the layout.
"""
