"""Strands with its own instrumentation, on the chat API. People are named with `trace_attributes` of the agent."""

from __future__ import annotations

from typing import Any

from strands import Agent
from strands.models.openai import OpenAIModel
from strands.tools.tools import PythonAgentTool

from tests.harness.programs.asked import BASE, failing
from tests.harness.programs.otel import provider
from tests.harness.script import EARLIER, MODEL, SCENES, SYSTEM, TOOLS, Scene, result_of


def _tools() -> list[Any]:
    def made(name: str, text: str, schema: Any) -> PythonAgentTool:
        def invoke(use: Any, **_: Any) -> Any:
            return {"toolUseId": use["toolUseId"], "status": "success", "content": [{"text": result_of(name, use["input"])}]}

        return PythonAgentTool(name, {"name": name, "description": text, "inputSchema": {"json": schema}}, invoke)

    return [made(name, text, schema) for name, (text, schema) in TOOLS.items()]


def _run(scene: Scene) -> None:
    model = OpenAIModel(client_args={"base_url": f"{BASE}/v1", "api_key": "unused", "max_retries": 0}, model_id=MODEL)
    earlier: Any = [{"role": "user", "content": [{"text": EARLIER[0]}]}, {"role": "assistant", "content": [{"text": EARLIER[1]}]}]
    named: Any = {"user.id": scene.user, "session.id": scene.session, "metadata.consent": scene.consent}
    agent = Agent(
        model=model,
        system_prompt=SYSTEM,
        messages=earlier if scene.name == "history" else [],
        tools=_tools() if scene.calls else [],
        trace_attributes=named,
        callback_handler=None,
    )
    with failing(scene):
        agent(scene.prompt)


if __name__ == "__main__":
    provider()
    for one in SCENES.values():
        if one.name not in ("image", "json", "developer"):
            _run(one)
