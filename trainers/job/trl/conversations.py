"""Reads pairs as conversations, and tokenizes conversations with the chat template of the model.

A prompt is a JSON list of messages. Assistant messages may contain `tool_calls`, and messages with the role `tool` answer them.
An answer is text. If the row names tools, an answer can also be a JSON assistant message in canonical form:
{"role": "assistant", "content": …, "tool_calls": […]}. The column `tools` (JSON list of schemas, or null) holds the available tools.
If a template silently omitted tools or calls, the model would be trained on other input than it is served with. So this is an error.
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
from trainers.job.trl.micro_batches import PairSize
from trainers.job.trl.sampler import weight

Message = dict[str, Any]


class _Function(Frozen):
    name: str
    arguments: str | dict[str, Any] = ""


class _Call(Frozen):
    id: str | None = None
    type: Literal["function"] = "function"
    function: _Function


class _Assistant(Frozen):
    """Schema of a text that counts as a message. Any other text is plain text, so that no user input can end a run."""

    role: Literal["assistant"]
    content: str | None = None
    tool_calls: tuple[_Call, ...] | None = None


class Example(NamedTuple):
    """A preference pair as messages, or a demonstration, which has no rejected answer."""

    prompt: list[Message]
    chosen: Message
    rejected: Message | None
    """None for a demonstration."""
    tools: list[dict[str, Any]] | None
    """Schemas of the available tools."""
    weight: float
    """1 - 2 * P(label is wrong), or 1 without weighting."""

    @property
    def calls(self) -> bool:
        """Whether any message contains a tool call or its result."""
        return any(message.get("tool_calls") or message["role"] == "tool" for message in [*self.prompt, *self.answers])

    @property
    def answers(self) -> list[Message]:
        """The chosen answer, and the rejected one if it exists."""
        return [self.chosen] if self.rejected is None else [self.chosen, self.rejected]


def read(path: Path, weigh: bool) -> list[Example]:
    """Return the pairs of a Parquet file (contracts.data.records.PAIRS). Its column `tools` is optional.

    If `weigh` is false, all weights are 1. Raises Permanent for an invalid row.
    """
    import pyarrow.parquet as pq

    wanted = ["prompt", "chosen", "rejected", "weight"]
    known = pq.read_schema(path).names
    rows = pq.read_table(path, columns=[*wanted, *(["tools"] if "tools" in known else [])]).to_pylist()
    return [_example(row, number, weigh) for number, row in enumerate(rows)]


def _example(row: Mapping[str, Any], number: int, weigh: bool) -> Example:
    pair = f"pair {number}"
    prompt, tools = messages(row["prompt"], pair), _listed(row["tools"], pair, "tools") if row.get("tools") else None
    read_answer = assistant_message if tools else _text_answer  # without tools there are no calls, so JSON text stays plain text
    chosen, rejected = (read_answer(answer_text(row[name], pair, f"{name} answer")) for name in ("chosen", "rejected"))
    return Example(_all_plain(prompt, pair), chosen, rejected, tools or None, weight(row["weight"], pair) if weigh else 1.0)


def read_shown(path: Path) -> list[Example]:
    """Return the demonstrations of a Parquet file (contracts.data.records.DEMONSTRATIONS). Raises Permanent for an invalid row."""
    import pyarrow.parquet as pq

    rows = pq.read_table(path, columns=["prompt", "answer", "weight"]).to_pylist()
    return [_shown(row, f"demonstration {number}") for number, row in enumerate(rows)]


def _shown(row: Mapping[str, Any], name: str) -> Example:
    prompt = _all_plain(messages(row["prompt"], name), name)
    return Example(prompt, _text_answer(answer_text(row["answer"], name, "answer")), None, None, weight(row["weight"], name))


def _all_plain(prompt: list[Message], row: str) -> list[Message]:
    try:
        return [_plain(message) for message in prompt]
    except (ValueError, TypeError, AttributeError) as error:
        raise Permanent(f"{row}: a prompt message does not match contracts/data/records.py ({error}); rebuild the training set") from error


def messages(text: Any, row: str) -> list[Message]:
    """Return the logged messages of a prompt from its JSON text, at least one.

    Raises Permanent for any other value. The message names the `row`.
    """
    found = _listed(text, row, "prompt")
    if not found or not all(isinstance(message.get("role"), str) for message in found):
        raise Permanent(f"{row}: its prompt has no message, or a message without a role; {_REMEDY}")
    return found


def answer_text(text: Any, row: str, what: str) -> str:
    """Return the text of an answer. Raises Permanent if it is not a string; the message names the `row` and `what` is missing."""
    if not isinstance(text, str):
        raise Permanent(f"{row}: its {what} is {text}, not text; {_REMEDY}")
    return text


def _listed(text: Any, row: str, what: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise Permanent(f"{row}: its {what} is not valid JSON ({error}); {_REMEDY}") from error
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise Permanent(f"{row}: its {what} is not a JSON list of objects; {_REMEDY}")
    return found


_REMEDY = "contracts/data/records.py defines the columns; rebuild the training set"


def _text_answer(text: str) -> Message:
    return {"role": "assistant", "content": text}


def assistant_message(text: str) -> Message:
    """Return the assistant message for `text`.

    If `text` is the JSON of a valid assistant message, this is that message. Otherwise, `text` is its content.
    """
    if text.startswith("{"):
        with suppress(ValidationError):
            message = _Assistant.model_validate_json(text)
            if message.content is not None or message.tool_calls:
                return _plain(json.loads(text))
    return _text_answer(text)


def _plain(message: Mapping[str, Any]) -> Message:
    """The message in the form that templates expect: without nulls, and with the arguments of a call as an object.

    In the API format, the arguments are a JSON string.
    """
    plain = {key: value for key, value in message.items() if value is not None}
    plain = {"role": message["role"], "content": "", **plain}
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_call(call) for call in plain["tool_calls"]]
    return plain


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    if isinstance(function.get("arguments"), str):
        with suppress(ValueError, RecursionError):  # invalid arguments can be the reason for the rejection of an answer
            arguments = json.loads(function["arguments"])
            function["arguments"] = arguments if isinstance(arguments, dict) else function["arguments"]
    return {**call, "function": function} if function else dict(call)


def control_words(tokenizer: Any) -> frozenset[str]:
    """Return the special tokens of the tokenizer as text: ends of turns and texts, roles, and padding.

    The tokenizer recognises them at any place in a text.
    """
    added = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    return frozenset(word for word in (*added, *map(str, tokenizer.all_special_tokens)) if word.strip())


def imitable(answer: Message | str, control: frozenset[str]) -> bool:
    """Return whether an answer contains none of the special tokens in `control`.

    A special token in an answer would teach the model to end its turn early and to write the user's next message. So a malicious
    correction could forge messages of other users.
    """
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return not any(word in text for word in control)


def encode(tokenizer: Any, examples: Sequence[Example], max_length: int) -> list[tuple[int, PairSize]]:
    """Return (index, tokens) of each example whose prompt is shorter than `max_length` tokens. Longer answers are truncated.

    Raises Permanent if the template cannot render an example, or omits its tools or calls.
    """
    for check in (_tools_are_rendered, _calls_are_rendered):
        check(tokenizer, examples)
    pairs = [_pair(tokenizer, example) for example in examples]
    return [(number, pair.cut(max_length)) for number, pair in enumerate(pairs) if len(pair.prompt) < max_length]


def _pair(tokenizer: Any, example: Example) -> PairSize:
    """Tokenize one example. The answers start where the tokens of the prompt and of the conversations first differ.

    This is not always the end of the prompt.
    """
    prompt = _ids(tokenizer, example.prompt, example.tools, add_generation_prompt=True)
    whole = [_ids(tokenizer, [*example.prompt, last], example.tools) for last in example.answers]
    begin = min(_common(prompt, ids) for ids in whole)
    chosen, *rejected = (ids[begin:] for ids in whole)
    return PairSize(prompt[:begin], chosen, *rejected or [[]])


def _ids(tokenizer: Any, messages: list[Message], tools: Any, **options: Any) -> list[int]:
    rendered = _render(tokenizer, messages, tools, tokenize=True, return_dict=True, **options)
    return list(rendered["input_ids"])


def _render(tokenizer: Any, messages: list[Message], tools: Any, **options: Any) -> Any:
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(messages, tools=tools, **options)
    except (TemplateError, TypeError) as error:
        raise Permanent(
            f"the model's chat template cannot render a conversation ({error}); fix the template, or remove such pairs"
        ) from error


def _common(one: list[int], other: list[int]) -> int:
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))


def _tools_are_rendered(tokenizer: Any, examples: Sequence[Example]) -> None:
    example = next((example for example in examples if example.tools), None)
    if example and _text(tokenizer, example.prompt, example.tools) == _text(tokenizer, example.prompt, None):
        raise Permanent("the pairs name tools, but the model's chat template omits them; adopt a model whose template renders `tools`")


def _calls_are_rendered(tokenizer: Any, examples: Sequence[Example]) -> None:
    example = next((example for example in examples if example.calls), None)
    if example is None:
        return
    for last in example.answers:
        messages = [*example.prompt, last]
        for at, message in enumerate(messages):
            without = [*messages[:at], {key: value for key, value in message.items() if key != "tool_calls"}, *messages[at + 1 :]]
            if message.get("tool_calls") and _text(tokenizer, messages, example.tools) == _text(tokenizer, without, example.tools):
                raise Permanent("an assistant message calls a tool, but the model's chat template omits `tool_calls`; adopt another model")
            other = [*messages[:at], {**message, "content": "\N{SECTION SIGN}"}, *messages[at + 1 :]]
            if message["role"] == "tool" and _text(tokenizer, messages, example.tools) == _text(tokenizer, other, example.tools):
                raise Permanent("a message has the role `tool`, but the model's chat template omits this role; adopt another model")


def _text(tokenizer: Any, messages: list[Message], tools: Any) -> str:
    return str(_render(tokenizer, messages, tools, tokenize=False))
