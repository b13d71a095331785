"""OpenInference: openai, anthropic, langchain. People are named with `using_attributes`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from openinference.instrumentation import using_attributes

from tests.harness.programs import asked
from tests.harness.programs.otel import anthropic_client, openai_client, provider
from tests.harness.script import Scene


@contextlib.contextmanager
def about(scene: Scene) -> Iterator[dict[str, Any]]:
    """Name the people of a scene."""
    with using_attributes(user_id=scene.user, session_id=scene.session, metadata={"consent": scene.consent}):
        yield {}


if __name__ == "__main__":
    which = sys.argv[1]
    if which == "openai":
        from openinference.instrumentation.openai import OpenAIInstrumentor

        OpenAIInstrumentor().instrument(tracer_provider=provider())
        asked.chat(openai_client(), about)
        asked.responses(openai_client(), about)
    elif which == "anthropic":
        from openinference.instrumentation.anthropic import AnthropicInstrumentor

        AnthropicInstrumentor().instrument(tracer_provider=provider())
        asked.anthropic(anthropic_client(), about)
    else:
        from openinference.instrumentation.langchain import LangChainInstrumentor

        from tests.harness.programs import langchain

        LangChainInstrumentor().instrument(tracer_provider=provider())
        langchain.all_calls(about)
