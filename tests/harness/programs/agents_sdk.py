"""OpenInference on the Agents SDK of OpenAI, on both APIs. People are named with `using_attributes`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agents import Agent, FunctionTool, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner
from openai import AsyncOpenAI
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor

from tests.harness.programs.asked import BASE, STREAMED, failing
from tests.harness.programs.openinference import about
from tests.harness.programs.otel import provider
from tests.harness.script import EARLIER, MODEL, SCENES, SYSTEM, TOOLS, Scene, result_of


def _tools() -> list[Any]:
    def made(name: str, text: str, schema: Any) -> FunctionTool:
        async def invoke(_context: Any, arguments: str) -> str:
            return result_of(name, json.loads(arguments))

        return FunctionTool(name=name, description=text, params_json_schema=schema, on_invoke_tool=invoke, strict_json_schema=False)

    return [made(name, text, schema) for name, (text, schema) in TOOLS.items()]


async def _run(scene: Scene, model: Any) -> None:
    agent = Agent(name="harbour", instructions=SYSTEM, model=model, tools=_tools() if scene.calls else [])
    items: Any = scene.prompt
    if scene.name == "history":
        items = [{"role": "user", "content": EARLIER[0]}, {"role": "assistant", "content": EARLIER[1]}, {"role": "user", "content": items}]
    config = RunConfig(workflow_name="harness")
    with failing(scene), about(scene):
        if scene.name in STREAMED:
            async for _ in Runner.run_streamed(agent, items, run_config=config).stream_events():
                pass
        else:
            await Runner.run(agent, items, run_config=config)


async def main() -> None:
    """Run an agent for each scene, on both APIs."""
    client = AsyncOpenAI(base_url=f"{BASE}/v1", api_key="unused", max_retries=0)
    for model in (OpenAIChatCompletionsModel(MODEL, client), OpenAIResponsesModel(MODEL, client)):
        for scene in SCENES.values():
            if scene.name not in ("image", "json", "developer"):
                await _run(scene, model)


if __name__ == "__main__":
    OpenAIAgentsInstrumentor().instrument(tracer_provider=provider())
    asyncio.run(main())
