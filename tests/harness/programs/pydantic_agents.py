"""pydantic-ai with its own instrumentation, on three APIs. People are named as attributes of a span around the run and of the call."""

from __future__ import annotations

import sys
from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from opentelemetry.sdk.trace import TracerProvider
from pydantic_ai import Agent, ImageUrl, Tool
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.harness.programs.asked import BASE, STREAMED, failing
from tests.harness.programs.otel import provider
from tests.harness.programs.people import Named, about
from tests.harness.script import EARLIER, IMAGE, MESSAGES_MODEL, MODEL, SCENES, SYSTEM, TOOLS, Scene, result_of


def _tools() -> list[Any]:
    def made(name: str, text: str, schema: Any) -> Tool:
        def invoke(**arguments: Any) -> str:
            return result_of(name, arguments)

        return Tool.from_schema(invoke, name=name, description=text, json_schema=schema)

    return [made(name, text, schema) for name, (text, schema) in TOOLS.items()]


def _run(scene: Scene, model: Any, settings: InstrumentationSettings) -> None:
    agent = Agent(model, instructions=SYSTEM, tools=_tools() if scene.calls else [], retries=0)
    agent.instrument = settings
    asked: Any = [scene.prompt, ImageUrl(url=IMAGE)] if scene.name == "image" else scene.prompt
    earlier = [ModelRequest(parts=[UserPromptPart(content=EARLIER[0])]), ModelResponse(parts=[TextPart(content=EARLIER[1])])]
    more: Any = {"message_history": earlier if scene.name == "history" else None}
    with failing(scene), about(scene):
        if scene.name in STREAMED:
            list(agent.run_stream_sync(asked, **more).stream_text())
        else:
            agent.run_sync(asked, **more)


def main(version: Any) -> None:
    """Run an agent for each scene, on three APIs."""
    spans: TracerProvider = provider()
    spans.add_span_processor(Named())
    settings = InstrumentationSettings(tracer_provider=spans, version=version)
    client: Any = OpenAIProvider(openai_client=AsyncOpenAI(base_url=f"{BASE}/v1", api_key="unused", max_retries=0))
    other: Any = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=BASE, api_key="unused", max_retries=0))
    models = [
        OpenAIChatModel(MODEL, provider=client),
        OpenAIResponsesModel(MODEL, provider=client),
        AnthropicModel(MESSAGES_MODEL, provider=other),
    ]
    for model in models:
        for scene in SCENES.values():
            if scene.name not in ("json", "developer"):
                _run(scene, model, settings)


if __name__ == "__main__":
    main(int(sys.argv[1]))
