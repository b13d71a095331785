"""Programs that call the model server through one library each. They run in environments of their own, without Ratchet."""
