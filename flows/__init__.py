"""The service: the only room that knows all the others. Layers, bottom to top: core and ledger, config, engine,
prefect and report, cli."""
