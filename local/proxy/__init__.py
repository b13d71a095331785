"""The router process: an OpenAI chat API that splits sessions over model versions by weight and traces every call."""
