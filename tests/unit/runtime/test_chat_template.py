"""Tests of tool calls in generated text, with the chat templates of several model families."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jinja2
import pytest

from ratchet.runtime.chat_template import CallFormat, Render, call_format, read_answer, template_messages

QWEN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}'
)
LLAMA = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{% if m.tool_calls %}"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "{% else %}{{ m.content }}{% endif %}<|eot_id|>{% endfor %}"
)
MISTRAL = (
    "{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
    "{{ ', ' if not loop.last }}{% endfor %}]</s>{% elif m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>"
    "{% endif %}{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def renderer(template: str) -> Render:
    compiled = jinja2.Environment(autoescape=False).from_string(template)

    def render(messages: Sequence[dict[str, Any]], tools: Any) -> str:
        return compiled.render(messages=messages, tools=tools)

    return render


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (QWEN, CallFormat("<tool_call>", "</tool_call>", "arguments")),
        (LLAMA, CallFormat("", "", "parameters")),
        (MISTRAL, CallFormat("[TOOL_CALLS] [", "]", "arguments")),
        (PLAIN, None),
        ("{{ raise_error() }}", None),
    ],
)
def test_the_format_is_found_in_the_template(template: str, form: CallFormat | None) -> None:
    assert call_format(renderer(template)) == form


@pytest.mark.parametrize("template", [QWEN, MISTRAL])
def test_rendered_calls_are_read_back(template: str) -> None:
    render = renderer(template)
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": f"f{n}", "arguments": json.dumps({"x": n}, separators=(",", ":"))}}
        for n in range(3)
    ]
    answer = {"role": "assistant", "content": "", "tool_calls": calls}
    text = render(template_messages([answer]), None)
    for mark in ("<|im_start|>assistant\n", "<|im_end|>", "</s>"):
        text = text.replace(mark, "")
    assert read_answer(text, call_format(render)) == answer


@pytest.mark.parametrize(
    ("text", "content", "names"),
    [
        ('I look.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', "I look.", ["f"]),
        ('<tool_call>{"name": "f", "arguments": {}}</tool_call> done', "done", ["f"]),
        ('<tool_call>{"name": "f", "arguments": {"x": </tool_call>', None, []),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', None, []),
        ('<tool_call>{"name": "f", "arguments": {}}', None, []),
        ('{"name": "f", "arguments": {}}', None, []),
        ("<tool_call>" + "[" * 5000, None, []),
        ("no call", None, []),
    ],
)
def test_only_complete_calls_count(text: str, content: str | None, names: list[str]) -> None:
    found = read_answer(text, CallFormat("<tool_call>", "</tool_call>", "arguments"))
    assert found["content"] == (text if content is None else content)
    assert [call["function"]["name"] for call in found.get("tool_calls", [])] == names


def test_a_whole_answer_can_be_a_call() -> None:
    form = CallFormat("", "", "parameters")
    assert read_answer(' {"name": "f", "parameters": {"x": 1}} ', form)["tool_calls"][0]["function"]["arguments"] == '{"x":1}'
    assert read_answer('Use {"name": "f", "parameters": {}}', form) == {
        "role": "assistant",
        "content": 'Use {"name": "f", "parameters": {}}',
    }


def test_messages_for_templates() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    given = [{"role": "user", "content": parts}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert template_messages(given) == [
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "", "tool_calls": [call | {"function": {"name": "f", "arguments": {"x": 1}}}]},
    ]
