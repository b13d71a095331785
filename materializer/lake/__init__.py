"""The Iceberg lake: tables, schemas, exactly-once ingest, the dedup index and compaction."""
