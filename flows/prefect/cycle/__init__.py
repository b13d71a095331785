"""One cycle as one Prefect run: its flow, its form, its artifacts, and the threads that carry it."""
