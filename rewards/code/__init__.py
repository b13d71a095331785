"""Runs the code of an answer in a sandbox, and compares what it does with the tests of the reference. Linux only."""
