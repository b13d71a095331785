"""LlamaIndex with OpenInference: calls of a model, and agents with tools. People are named with `using_attributes`."""

from __future__ import annotations

import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from openinference.instrumentation.llama_index import LlamaIndexInstrumentor

from tests.harness.programs.asked import BASE, failing
from tests.harness.programs.frameworks.tools import FUNCTIONS
from tests.harness.programs.openinference import about
from tests.harness.programs.otel import provider
from tests.harness.script import EARLIER, MODEL, SCENES, SYSTEM, Scene


async def _run(scene: Scene) -> None:
    llm = OpenAILike(
        model=MODEL, api_base=f"{BASE}/v1", api_key="unused", is_chat_model=True, is_function_calling_model=True, max_retries=0
    )
    if scene.calls:
        tools = [FunctionTool.from_defaults(one) for one in FUNCTIONS]
        agent = FunctionAgent(tools=tools, llm=llm, system_prompt=SYSTEM, streaming=scene.name == "tool_stream")
        await agent.run(scene.prompt)
        return
    earlier = [ChatMessage(role=role, content=text) for role, text in zip(("user", "assistant"), EARLIER, strict=True)]
    before = earlier if scene.name == "history" else []
    messages = [ChatMessage(role="system", content=SYSTEM), *before, ChatMessage(role="user", content=scene.prompt)]
    if scene.name == "stream":
        for _ in llm.stream_chat(messages):
            pass
    else:
        llm.chat(messages)


async def _all() -> None:
    for scene in SCENES.values():
        if scene.name not in ("image", "json", "developer"):
            with failing(scene), about(scene):
                await _run(scene)


if __name__ == "__main__":
    LlamaIndexInstrumentor().instrument(tracer_provider=provider())
    asyncio.run(_all())
