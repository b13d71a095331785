"""Shared types and ports of Ratchet: every type that crosses a package boundary is defined here.

This package imports only pydantic and the standard library. The service, the training jobs and the tests use the same types.
"""
