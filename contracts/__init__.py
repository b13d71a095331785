"""The vocabulary of Ratchet: every type that crosses a boundary between rooms, and the ports.

Imports pydantic and the standard library only, and no other room. A training job, the service and a test all
read the same words here.
"""
