"""Machine profiles as data: one file adds one."""
