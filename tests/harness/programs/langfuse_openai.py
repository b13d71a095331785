"""Langfuse SDK with its OpenAI client. People are named with `propagate_attributes`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from langfuse import Langfuse, propagate_attributes
from langfuse.openai import OpenAI

from tests.harness.programs import asked
from tests.harness.script import Scene


@contextlib.contextmanager
def about(scene: Scene) -> Iterator[dict[str, Any]]:
    """Name the people of a scene."""
    given = {"consent": "true" if scene.consent else "false"}
    with propagate_attributes(user_id=scene.user, session_id=scene.session, metadata=given):
        yield {}


if __name__ == "__main__":
    langfuse = Langfuse(public_key="pk-lf-unused", secret_key="sk-lf-unused", base_url=asked.BASE)
    client = OpenAI(base_url=f"{asked.BASE}/v1", api_key="unused", max_retries=0)
    asked.chat(client, about, langfuse.flush)
    asked.responses(client, about, langfuse.flush)
    langfuse.shutdown()
