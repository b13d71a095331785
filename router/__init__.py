"""The router: an OpenAI chat API that splits sessions over model versions by weight and traces every call.

It runs as a process on one machine (`local`). Its state is behind a port (`state.py`), so that it can run elsewhere.
"""
