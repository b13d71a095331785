"""The functions that the engines of the port `Compute` map over batches, prompts and answers."""
