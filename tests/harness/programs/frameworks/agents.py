"""Agents: Agno with OpenInference, and Microsoft's Agent Framework with its own instrumentation.

People are named with `using_attributes`, and by a processor of spans.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from tests.harness.programs.asked import BASE, STREAMED, failing
from tests.harness.programs.frameworks.people import PeopleProcessor
from tests.harness.programs.frameworks.people import about as named_people
from tests.harness.programs.frameworks.tools import FUNCTIONS
from tests.harness.programs.openinference import about
from tests.harness.programs.otel import provider
from tests.harness.script import MODEL, SCENES, SYSTEM, Scene

_ASKED = [scene for scene in SCENES.values() if scene.name not in ("image", "json", "developer", "history")]


def _agno(scene: Scene) -> None:
    from agno.agent import Agent
    from agno.models.openai import OpenAIChat

    model = OpenAIChat(id=MODEL, base_url=f"{BASE}/v1", api_key="unused", max_retries=0)
    agent = Agent(model=model, system_message=SYSTEM, tools=list(FUNCTIONS) if scene.calls else None, telemetry=False)
    if scene.name in STREAMED:
        for _ in agent.run(scene.prompt, stream=True):
            pass
    else:
        agent.run(scene.prompt)


async def _agent_framework(scene: Scene) -> None:
    import openai
    from agent_framework import Agent
    from agent_framework.openai import OpenAIChatCompletionClient

    server: Any = openai.AsyncOpenAI(base_url=f"{BASE}/v1", api_key="unused", max_retries=0)
    agent = Agent(
        OpenAIChatCompletionClient(model=MODEL, async_client=server), instructions=SYSTEM, tools=list(FUNCTIONS) if scene.calls else []
    )
    if scene.name in STREAMED:
        async for _ in agent.run(scene.prompt, stream=True):
            pass
    else:
        await agent.run(scene.prompt)


if __name__ == "__main__":
    if sys.argv[1] == "agno":
        from openinference.instrumentation.agno import AgnoInstrumentor

        AgnoInstrumentor().instrument(tracer_provider=provider())
    else:
        from agent_framework.observability import enable_instrumentation

        enable_instrumentation(enable_sensitive_data=True)
        provider().add_span_processor(PeopleProcessor())
    for one in _ASKED:
        if sys.argv[1] == "agno" and one.calls:
            continue  # the spans of an agent's calls end together, so that they cannot be told apart here
        if sys.argv[1] == "agno":
            with failing(one), about(one):
                _agno(one)
        else:
            with failing(one), named_people(one):
                asyncio.run(_agent_framework(one))
