"""Traces of the router's traffic: spans, their signatures, the spool on the disk, and the way to the receiver."""
