"""The search over recipes of one training: what it tries next, shows and costs. Pure."""
