"""Where raw batches of traces come from: the OTLP/HTTP receiver, its spool, and files in a folder."""
