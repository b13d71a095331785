"""A line's teacher: which prompts may be sent to it, and the client that sends them."""
