"""Rows outside of memory: they are on disk in partitions, and joins are made within one partition at a time."""
