"""What a call of the model server was, in the canonical form. Written apart from the dialects: it knows only the requests of the script.

An unknown part of a request raises ValueError, so that nothing is missing on both sides of the comparison.
"""

from __future__ import annotations

import json
import re
from typing import Any

Message = dict[str, Any]
_THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
"""Reasoning that a library sends back as text. Reasoning is no part of a conversation."""


def message(role: str, content: Any = "", **more: Any) -> Message:
    """Return a message: role, text, images, calls [[name, arguments, id]] and the id of the call that it answers."""
    text, images = content_of(content)
    text = _THOUGHT.sub("", text) if role == "assistant" else text
    return {"role": role, "text": text, "images": images, "calls": [], "answers": None, **more}


def content_of(content: Any) -> tuple[str, list[str]]:
    """Return the text and the images of a content. Reasoning is left out. Raises ValueError for an unknown part."""
    if content is None or isinstance(content, str):
        return content or "", []
    texts, images = [], []
    for part in content:
        kind = part["type"]
        if kind in ("text", "input_text", "output_text"):
            texts.append(part["text"])
        elif kind == "image_url":
            images.append(part["image_url"]["url"])
        elif kind == "input_image":
            images.append(part["image_url"])
        elif kind == "image":
            images.append(part["source"]["url"])
        elif kind not in ("thinking", "reasoning"):
            raise ValueError(f"a request has the part {kind!r}")
    return "".join(texts), images


def of_chat(body: dict[str, Any]) -> tuple[list[Message], list[Any]]:
    """Return messages and tools of a chat request."""
    found = []
    for item in body["messages"]:
        calls = [[call["function"]["name"], json.loads(call["function"]["arguments"]), call["id"]] for call in item.get("tool_calls") or ()]
        found.append(message(item["role"], item.get("content"), calls=calls, answers=item.get("tool_call_id")))
    return found, [one["function"]["name"] for one in body.get("tools") or ()]


def of_responses(body: dict[str, Any]) -> tuple[list[Message], list[Any]]:
    """Return messages and tools of a request of the Responses API. The items of one answer become one message."""
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    found = [message("system", body["instructions"])] if body.get("instructions") else []
    open_answer: Message | None = None
    for item in items:
        kind = item.get("type", "message")
        if kind == "reasoning":
            continue
        if kind == "message" and item["role"] != "assistant":
            found.append(message(item["role"], item["content"]))
            open_answer = None
        elif kind == "function_call_output":
            found.append(message("tool", item["output"], answers=item["call_id"]))
            open_answer = None
        elif kind in ("message", "function_call"):
            if open_answer is None:
                open_answer = message("assistant")
                found.append(open_answer)
            if kind == "message":
                open_answer["text"] += message("assistant", item["content"])["text"]
            else:
                open_answer["calls"].append([item["name"], json.loads(item["arguments"]), item["call_id"]])
        else:
            raise ValueError(f"a request has the item {kind!r}")
    return found, [one["name"] for one in body.get("tools") or ()]


def of_anthropic(body: dict[str, Any]) -> tuple[list[Message], list[Any]]:
    """Return messages and tools of a request of Anthropic's API. Each result of a tool becomes a message."""
    found = [message("system", body["system"])] if body.get("system") else []
    for item in body["messages"]:
        content = item["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            if block["type"] == "tool_result":
                found.append(message("tool", block["content"], answers=block["tool_use_id"]))
        calls = [[block["name"], block["input"], block["id"]] for block in blocks if block["type"] == "tool_use"]
        rest = [block for block in blocks if block["type"] not in ("tool_result", "tool_use")]
        if rest or calls:
            found.append(message(item["role"], rest, calls=calls))
    return found, [one["name"] for one in body.get("tools") or ()]
