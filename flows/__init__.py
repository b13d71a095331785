"""The service: the only package that imports all other packages.

Layers, from bottom to top: core and ledger, config, engine, prefect and report, cli.
"""
