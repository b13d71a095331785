"""Programs of frameworks that call models, in the environment `frameworks`."""
