"""The calls of the script, made with `ChatOpenAI` of LangChain, on the chat API and on the Responses API."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from pydantic import create_model

from tests.harness.programs.asked import BASE, STREAMED, About, failing
from tests.harness.script import EARLIER, IMAGE, MODEL, SCENES, SYSTEM, TIDE, TOOLS, WIND, Scene, result_of


def _tools() -> list[StructuredTool]:
    made = []
    for name, (text, _) in TOOLS.items():
        call = next(one for one in (TIDE, WIND) if one.name == name)
        fields: Any = {key: (type(value), ...) for key, value in call.arguments.items()}
        made.append(StructuredTool(name=name, description=text, func=lambda **_: "", args_schema=create_model(name, **fields)))
    return made


def all_calls(about: About) -> None:
    """Make all calls on both APIs."""
    for responses in (False, True):
        model: Any = ChatOpenAI(
            model=MODEL, base_url=f"{BASE}/v1", api_key="unused", max_retries=0, use_responses_api=responses, stream_usage=True
        )
        for scene in SCENES.values():
            if scene.name != "developer":
                _call(model, scene, about)


def _call(model: Any, scene: Scene, about: About) -> None:
    content: Any = scene.prompt
    if scene.name == "image":
        content = [{"type": "text", "text": scene.prompt}, {"type": "image_url", "image_url": {"url": IMAGE}}]
    before = [HumanMessage(EARLIER[0]), AIMessage(EARLIER[1])] if scene.name == "history" else []
    messages = [SystemMessage(SYSTEM), *before, HumanMessage(content)]
    bound = model.bind_tools(_tools()) if scene.calls else model
    if scene.name == "json":
        bound = model.bind(response_format={"type": "json_object"})
    with failing(scene), about(scene) as named:
        said = _said(bound, scene, messages, named)
        if said.tool_calls:
            results = [ToolMessage(result_of(call["name"], call["args"]), tool_call_id=call["id"]) for call in said.tool_calls]
            _said(bound, scene, [*messages, said, *results], named)


def _said(model: Any, scene: Scene, messages: list[Any], named: dict[str, Any]) -> Any:
    if scene.name not in STREAMED:
        return model.invoke(messages, **named)
    whole = None
    for chunk in model.stream(messages, **named):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    return AIMessage(content=whole.content, tool_calls=whole.tool_calls)
