"""Pairs as conversations, and conversations as tokens, rendered by the model's own chat template.

A prompt is a JSON list of messages; assistant messages may carry `tool_calls`, and role `tool` answers them. An answer is
text, or, where the row names tools, a JSON assistant message in canonical form: {"role": "assistant", "content": …, "tool_calls": […]}.
A column `tools` (JSON list of schemas, or null) names what the assistant could call. A template that leaves any of it out silently would
train on something else than what is served: that is an error here. This module knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from contracts.errors import Permanent
from contracts.model import Frozen
from trainers.inside.batches import Pair
from trainers.inside.drawing import weight

Message = dict[str, Any]


class _Function(Frozen):
    name: str
    arguments: str | dict[str, Any] = ""


class _Call(Frozen):
    id: str | None = None
    type: Literal["function"] = "function"
    function: _Function


class _Assistant(Frozen):
    """The only shape in which a text counts as a message: anybody may write an answer, and nothing that is written may end a run."""

    role: Literal["assistant"]
    content: str | None = None
    tool_calls: tuple[_Call, ...] | None = None


class Example(NamedTuple):
    """One preference in words; or a demonstration, of which nothing was rejected."""

    prompt: list[Message]
    chosen: Message
    rejected: Message | None
    tools: list[dict[str, Any]] | None
    weight: float

    @property
    def calls(self) -> bool:
        """Whether any message calls a tool or answers a call."""
        return any(message.get("tool_calls") or message["role"] == "tool" for message in [*self.prompt, *self.answers])

    @property
    def answers(self) -> list[Message]:
        """Chosen, and rejected if there is one."""
        return [self.chosen] if self.rejected is None else [self.chosen, self.rejected]


def read(path: Path, weigh: bool) -> list[Example]:
    """The pairs of a Parquet file (contracts.records.PAIRS); its column `tools` may be absent. Permanent for a broken row."""
    import pyarrow.parquet as pq

    wanted = ["prompt", "chosen", "rejected", "weight"]
    known = pq.read_schema(path).names
    rows = pq.read_table(path, columns=[*wanted, *(["tools"] if "tools" in known else [])]).to_pylist()
    return [_example(row, number, weigh) for number, row in enumerate(rows)]


def _example(row: Mapping[str, Any], number: int, weigh: bool) -> Example:
    pair = f"pair {number}"
    prompt, tools = messages(row["prompt"], pair), _listed(row["tools"], pair, "tools") if row.get("tools") else None
    read_answer = answer if tools else _text_answer  # whoever had no tools called none: whatever it looks like, it is words
    chosen, rejected = (read_answer(words(row[name], pair, f"{name} answer")) for name in ("chosen", "rejected"))
    return Example(_all_plain(prompt, pair), chosen, rejected, tools or None, weight(row["weight"], pair) if weigh else 1.0)


def read_shown(path: Path) -> list[Example]:
    """The demonstrations of a Parquet file (contracts.records.DEMONSTRATIONS). Permanent for a broken row."""
    import pyarrow.parquet as pq

    rows = pq.read_table(path, columns=["prompt", "answer", "weight"]).to_pylist()
    return [_shown(row, f"demonstration {number}") for number, row in enumerate(rows)]


def _shown(row: Mapping[str, Any], name: str) -> Example:
    prompt = _all_plain(messages(row["prompt"], name), name)
    return Example(prompt, _text_answer(words(row["answer"], name, "answer")), None, None, weight(row["weight"], name))


def _all_plain(prompt: list[Message], row: str) -> list[Message]:
    try:
        return [_plain(message) for message in prompt]
    except (ValueError, TypeError, AttributeError) as error:
        raise Permanent(f"{row}: a message of its prompt has no shape that contracts.records describes ({error})") from error


def messages(text: Any, row: str) -> list[Message]:
    """A prompt's messages as they were logged, one at least. Permanent, naming the `row`, for anything else."""
    found = _listed(text, row, "prompt")
    if not found or not all(isinstance(message.get("role"), str) for message in found):
        raise Permanent(f"{row}: its prompt holds no message, or one without a role; {_REMEDY}")
    return found


def words(text: Any, row: str, what: str) -> str:
    """An answer. Permanent, naming the `row`, where there is none."""
    if not isinstance(text, str):
        raise Permanent(f"{row}: its {what} is {text}, not text; {_REMEDY}")
    return text


def _listed(text: Any, row: str, what: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise Permanent(f"{row}: its {what} is no JSON ({error}); {_REMEDY}") from error
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise Permanent(f"{row}: its {what} is no JSON list of objects; {_REMEDY}")
    return found


_REMEDY = "contracts/records.py says what the columns hold: make the training set anew"


def _text_answer(text: str) -> Message:
    return {"role": "assistant", "content": text}


def answer(text: str) -> Message:
    """The assistant's message: the one that `text` is the JSON of, if that has a message's shape in every part; else `text` itself."""
    if text.startswith("{"):
        with suppress(ValidationError):
            said = _Assistant.model_validate_json(text)
            if said.content is not None or said.tool_calls:
                return _plain(json.loads(text))
    return _text_answer(text)


def _plain(message: Mapping[str, Any]) -> Message:
    """As templates expect it: no nulls, and a call's arguments as an object, which on the wire are text (JSON in JSON)."""
    plain = {key: value for key, value in message.items() if value is not None}
    plain = {"role": message["role"], "content": "", **plain}
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_call(call) for call in plain["tool_calls"]]
    return plain


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    if isinstance(function.get("arguments"), str):
        with suppress(ValueError, RecursionError):  # broken arguments may be just what a rejected answer is rejected for
            arguments = json.loads(function["arguments"])
            function["arguments"] = arguments if isinstance(arguments, dict) else function["arguments"]
    return {**call, "function": function} if function else dict(call)


def control_words(tokenizer: Any) -> frozenset[str]:
    """What the tokenizer reads as control wherever it stands: ends of turns and of texts, roles, padding."""
    added = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    return frozenset(word for word in (*added, *map(str, tokenizer.all_special_tokens)) if word.strip())


def imitable(answer: Message | str, control: frozenset[str]) -> bool:
    """Whether an answer is words alone. One that holds control words would teach the model to end its turn early and speak for the user:
    whoever may write corrections could put words into other people's mouths."""
    said = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return not any(word in said for word in control)


def encode(tokenizer: Any, examples: Sequence[Example], max_length: int) -> list[tuple[int, Pair]]:
    """(index, tokens) of each pair or demonstration whose prompt leaves room for an answer within `max_length` tokens.

    Permanent where the template cannot render tools or calls that the examples hold.
    """
    for check in (_tools_are_rendered, _calls_are_rendered):
        check(tokenizer, examples)
    pairs = [_pair(tokenizer, example) for example in examples]
    return [(number, pair.cut(max_length)) for number, pair in enumerate(pairs) if len(pair.prompt) < max_length]


def _pair(tokenizer: Any, example: Example) -> Pair:
    """The answers begin where the prompt alone and the whole conversations part, which is not always at the prompt's end."""
    prompt = _ids(tokenizer, example.prompt, example.tools, add_generation_prompt=True)
    whole = [_ids(tokenizer, [*example.prompt, last], example.tools) for last in example.answers]
    begin = min(_common(prompt, ids) for ids in whole)
    chosen, *rejected = (ids[begin:] for ids in whole)
    return Pair(prompt[:begin], chosen, *rejected or [[]])


def _ids(tokenizer: Any, messages: list[Message], tools: Any, **options: Any) -> list[int]:
    rendered = _render(tokenizer, messages, tools, tokenize=True, return_dict=True, **options)
    return list(rendered["input_ids"])


def _render(tokenizer: Any, messages: list[Message], tools: Any, **options: Any) -> Any:
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(messages, tools=tools, **options)
    except (TemplateError, TypeError) as error:
        raise Permanent(
            f"the model's chat template cannot render a conversation ({error}); fix the template, or leave such pairs out"
        ) from error


def _common(one: list[int], other: list[int]) -> int:
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))


def _tools_are_rendered(tokenizer: Any, examples: Sequence[Example]) -> None:
    example = next((example for example in examples if example.tools), None)
    if example and _text(tokenizer, example.prompt, example.tools) == _text(tokenizer, example.prompt, None):
        raise Permanent("the pairs name tools, but the model's chat template leaves them out; adopt a model whose template renders `tools`")


def _calls_are_rendered(tokenizer: Any, examples: Sequence[Example]) -> None:
    example = next((example for example in examples if example.calls), None)
    if example is None:
        return
    for last in example.answers:
        messages = [*example.prompt, last]
        for at, message in enumerate(messages):
            without = [*messages[:at], {key: value for key, value in message.items() if key != "tool_calls"}, *messages[at + 1 :]]
            if message.get("tool_calls") and _text(tokenizer, messages, example.tools) == _text(tokenizer, without, example.tools):
                raise Permanent(
                    "an assistant message calls a tool, but the model's chat template leaves `tool_calls` out; adopt another model"
                )
            other = [*messages[:at], {**message, "content": "\N{SECTION SIGN}"}, *messages[at + 1 :]]
            if message["role"] == "tool" and _text(tokenizer, messages, example.tools) == _text(tokenizer, other, example.tools):
                raise Permanent("a tool answers, but the model's chat template leaves role `tool` out; adopt another model")


def _text(tokenizer: Any, messages: list[Message], tools: Any) -> str:
    return str(_render(tokenizer, messages, tools, tokenize=False))
