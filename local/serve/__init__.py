"""The embedded model server process: an OpenAI chat API over one small model."""
