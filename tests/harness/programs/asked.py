"""The calls of the script, made with the clients of OpenAI and Anthropic. A program adds its library, and says how it names people."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from tests.harness.script import EARLIER, IMAGE, MESSAGES_MODEL, MODEL, SCENES, SYSTEM, TOOLS, Scene, result_of

BASE = os.environ.get("HARNESS_URL", "")
"""Address of the model server, or of the router before it, and of the receiver."""
RECEIVER = os.environ.get("HARNESS_RECEIVER", BASE)
"""Address of the receiver."""

About = Callable[[Scene], contextlib.AbstractContextManager[dict[str, Any]]]
"""Names user, session and consent of a scene for the calls inside. Yields more arguments of the request."""
SEQUENCES = ("tool", "parallel", "twice", "tool_stream", "said", "reasoned_tool")
STREAMED = ("stream", "tool_stream")


@contextlib.contextmanager
def failing(scene: Scene) -> Iterator[None]:
    """Expect the failure of the scene `failing` and no other one."""
    try:
        yield
    except Exception as error:
        if not scene.fails:
            raise
        print(f"{scene.name}: {type(error).__name__}")


def chat(client: Any, about: About, flush: Callable[[], object] = lambda: None, leave: tuple[str, ...] = ()) -> None:
    """Make all calls of the chat API."""
    tools = [
        {"type": "function", "function": {"name": name, "description": text, "parameters": schema}}
        for name, (text, schema) in TOOLS.items()
    ]
    for scene in SCENES.values():
        if scene.name in leave:
            continue
        first = {"role": "developer" if scene.name == "developer" else "system", "content": SYSTEM}
        asked: Any = scene.prompt
        if scene.name == "image":
            asked = [{"type": "text", "text": scene.prompt}, {"type": "image_url", "image_url": {"url": IMAGE}}]
        before = [{"role": "user", "content": EARLIER[0]}, {"role": "assistant", "content": EARLIER[1]}] if scene.name == "history" else []
        messages: list[Any] = [first, *before, {"role": "user", "content": asked}]
        more: dict[str, Any] = {"tools": tools} if scene.calls else {}
        if scene.name == "json":
            more["response_format"] = {"type": "json_object"}
        with failing(scene), about(scene) as named:
            message = _chat(client, scene, messages, more | named)
            flush()
            if message["tool_calls"]:
                answers = [
                    {
                        "role": "tool",
                        "tool_call_id": call["id"],
                        "content": result_of(call["function"]["name"], json.loads(call["function"]["arguments"])),
                    }
                    for call in message["tool_calls"]
                ]
                _chat(client, scene, [*messages, message, *answers], more | named)
        flush()


def _chat(client: Any, scene: Scene, messages: list[Any], more: dict[str, Any]) -> dict[str, Any]:
    if scene.name not in STREAMED:
        message = client.chat.completions.create(model=MODEL, messages=messages, **more).choices[0].message
        calls = [call.model_dump() for call in message.tool_calls or ()]
        return {"role": "assistant", "content": message.content, "tool_calls": calls}
    text, calls = "", {}
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(model=MODEL, messages=messages, stream=True, stream_options=options, **more):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                one = calls.setdefault(
                    call.index, {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": ""}}
                )
                one["function"]["arguments"] += call.function.arguments or ""
    return {"role": "assistant", "content": text or None, "tool_calls": list(calls.values())}


def responses(client: Any, about: About, flush: Callable[[], object] = lambda: None, leave: tuple[str, ...] = ()) -> None:
    """Make all calls of the Responses API. The scene `code` asks without instructions."""
    tools = [
        {"type": "function", "name": name, "description": text, "parameters": schema, "strict": False}
        for name, (text, schema) in TOOLS.items()
    ]
    for scene in SCENES.values():
        if scene.name in leave:
            continue
        items: Any = [{"role": "user", "content": scene.prompt}]
        if scene.name == "history":
            items = [{"role": "user", "content": EARLIER[0]}, {"role": "assistant", "content": EARLIER[1]}, *items]
        elif scene.name == "image":
            items[0]["content"] = [
                {"type": "input_text", "text": scene.prompt},
                {"type": "input_image", "image_url": IMAGE, "detail": "auto"},
            ]
        elif scene.name == "developer":
            items = [{"role": "developer", "content": SYSTEM}, *items]
        elif scene.name in ("plain", "refused"):
            items = scene.prompt
        more: dict[str, Any] = {} if scene.name in ("code", "developer") else {"instructions": SYSTEM}
        if scene.calls:
            more["tools"] = tools
        if scene.name == "json":
            more["text"] = {"format": {"type": "json_object"}}
        with failing(scene), about(scene) as named:
            output = _responses(client, scene, items, more | named)
            flush()
            called = [item for item in output if item["type"] == "function_call"]
            if called:
                answers = [
                    {
                        "type": "function_call_output",
                        "call_id": item["call_id"],
                        "output": result_of(item["name"], json.loads(item["arguments"])),
                    }
                    for item in called
                ]
                _responses(client, scene, [*items, *output, *answers], more | named)
        flush()


def _responses(client: Any, scene: Scene, items: Any, more: dict[str, Any]) -> list[dict[str, Any]]:
    if scene.name not in STREAMED:
        reply = client.responses.create(model=MODEL, input=items, **more)
    else:
        reply = None
        for event in client.responses.create(model=MODEL, input=items, stream=True, **more):
            reply = getattr(event, "response", reply)
    return [item.model_dump(exclude_none=True) for item in reply.output]


def anthropic(client: Any, about: About, flush: Callable[[], object] = lambda: None, leave: tuple[str, ...] = ()) -> None:
    """Make all calls of Anthropic's API."""
    tools = [{"name": name, "description": text, "input_schema": schema} for name, (text, schema) in TOOLS.items()]
    for scene in SCENES.values():
        if scene.name in leave or scene.name in ("json", "developer"):
            continue
        asked: Any = scene.prompt
        if scene.name == "image":
            asked = [{"type": "text", "text": scene.prompt}, {"type": "image", "source": {"type": "url", "url": IMAGE}}]
        before = [{"role": "user", "content": EARLIER[0]}, {"role": "assistant", "content": EARLIER[1]}] if scene.name == "history" else []
        messages: list[Any] = [*before, {"role": "user", "content": asked}]
        more: dict[str, Any] = {"tools": tools} if scene.calls else {}
        if scene.name != "code":
            more["system"] = [{"type": "text", "text": SYSTEM}] if scene.name == "said" else SYSTEM
        if scene.reasoning:
            more["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        with failing(scene), about(scene) as named:
            content = _anthropic(client, scene, messages, more | named)
            flush()
            called = [block for block in content if block["type"] == "tool_use"]
            if called:
                answers = [
                    {"type": "tool_result", "tool_use_id": block["id"], "content": result_of(block["name"], block["input"])}
                    for block in called
                ]
                turns = [*messages, {"role": "assistant", "content": content}, {"role": "user", "content": answers}]
                _anthropic(client, scene, turns, more | named)
        flush()


def _anthropic(client: Any, scene: Scene, messages: list[Any], more: dict[str, Any]) -> list[dict[str, Any]]:
    asked = {"model": MESSAGES_MODEL, "max_tokens": 2048, "messages": messages, **more}
    if scene.name not in STREAMED:
        return [block.model_dump(exclude_none=True) for block in client.messages.create(**asked).content]
    if scene.name == "stream":
        blocks: list[dict[str, Any]] = []
        for event in client.messages.create(stream=True, **asked):
            if event.type == "content_block_start":
                blocks.append(event.content_block.model_dump(exclude_none=True))
            elif event.type == "content_block_delta":
                blocks[event.index]["text"] += event.delta.text
        return blocks
    with client.messages.stream(**asked) as stream:
        return [block.model_dump(exclude_none=True) for block in stream.get_final_message().content]
