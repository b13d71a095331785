"""The Iceberg lake: its tables and schemas, and their upkeep; where it lies (`places`), and how batches are stored (`storing`)."""
