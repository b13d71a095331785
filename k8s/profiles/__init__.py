"""Machine profiles as TOML data, one file per kind of node."""
