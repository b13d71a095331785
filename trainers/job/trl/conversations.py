"""Reads pairs as conversations, and tokenizes conversations with the chat template of the model.

A prompt is a JSON list of messages. Assistant messages may contain `tool_calls`, and messages with the role `tool` answer them.
An answer is text, or the JSON of a message that calls tools (contracts/conversation.py). The column `tools` (JSON list of schemas, or null)
holds the available tools.
If a template silently omitted tools or calls, the model would be trained on other input than it is served with. So this is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ratchet.contracts.conversation import Message, answer_message
from ratchet.contracts.errors import Permanent
from ratchet.runtime.chat_template import common_length, template_messages, token_ids
from ratchet.trainers.job.prompt_length import rendered_prompt
from ratchet.trainers.job.trl.micro_batches import PairSize
from ratchet.trainers.job.trl.sampler import weight

_MARK = "zq_answer"
"""An answer that shows where a template writes answers."""


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
    def needs_tools(self) -> bool:
        """Whether only a template with tools renders the example whole."""
        return bool(self.tools) or self.calls

    @property
    def answers(self) -> list[Message]:
        """The chosen answer, and the rejected one if it exists."""
        return [self.chosen] if self.rejected is None else [self.chosen, self.rejected]


def read(path: Path, weigh: bool) -> list[Example]:
    """Return the pairs of a Parquet file (ratchet.contracts.data.records.PAIRS). Its column `tools` is optional.

    If `weigh` is false, all weights are 1. Raises Permanent for an invalid row.
    """
    import pyarrow.parquet as pq

    wanted = ["prompt", "chosen", "rejected", "weight"]
    known = pq.read_schema(path).names
    rows = pq.read_table(path, columns=[*wanted, *(["tools"] if "tools" in known else [])]).to_pylist()
    return [_example(row, number, weigh) for number, row in enumerate(rows)]


def _example(row: Mapping[str, Any], number: int, weigh: bool) -> Example:
    pair = f"pair {number}"
    prompt, tools = messages(row["prompt"], pair), tools_of(row, pair)
    chosen, rejected = (assistant_message(answer_text(row[name], pair, f"{name} answer")) for name in ("chosen", "rejected"))
    return Example(_all_plain(prompt, pair), chosen, rejected, tools, weight(row["weight"], pair) if weigh else 1.0)


def read_shown(path: Path) -> list[Example]:
    """Return the demonstrations of a Parquet file (ratchet.contracts.data.records.DEMONSTRATIONS). Raises Permanent for an invalid row."""
    rows = demonstrations(path)
    return [_shown(row, f"demonstration {number}") for number, row in enumerate(rows)]


def demonstrations(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file of demonstrations. Its column `tools` is missing if no row has a value."""
    import pyarrow.parquet as pq

    names = pq.read_schema(path).names
    more = [name for name in ("tools", "prompt_id", "source") if name in names]
    return list(pq.read_table(path, columns=["prompt", "answer", "weight", *more]).to_pylist())


def _shown(row: Mapping[str, Any], name: str) -> Example:
    prompt = _all_plain(messages(row["prompt"], name), name)
    answer = assistant_message(answer_text(row["answer"], name, "answer"))
    return Example(prompt, answer, None, tools_of(row, name), weight(row["weight"], name))


def tools_of(row: Mapping[str, Any], name: str) -> list[dict[str, Any]] | None:
    """Return the tools of a row; None if it has none. Raises Permanent if they are invalid; the message contains the `name` of the row."""
    return (_listed(row["tools"], name, "tools") or None) if row.get("tools") else None


def _all_plain(prompt: list[Message], row: str) -> list[Message]:
    try:
        return template_messages(prompt)
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


def assistant_message(text: str) -> Message:
    """Return the assistant message that a table stores as `text`, in the form that templates expect."""
    return template_messages([answer_message(text)])[0]


def control_words(tokenizer: Any) -> frozenset[str]:
    """Return as text the special tokens of the tokenizer (ends of turns and texts, roles, padding), and those that end a turn.

    The tokenizer recognises them at any place in a text. The end of a turn may be a token that the tokenizer does not call special.
    """
    added, ends = tokenizer.added_tokens_decoder, _ends_of_turn(tokenizer)
    found = (str(token) for number, token in added.items() if token.special or number in ends)
    return frozenset(word for word in (*found, *map(str, tokenizer.all_special_tokens)) if word.strip())


def _ends_of_turn(tokenizer: Any) -> set[int]:
    """Return the tokens that the chat template writes after an answer."""
    turn: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
    try:
        return set(token_ids(tokenizer, _text(tokenizer, turn, None).rpartition(_MARK)[2]))
    except Permanent:
        return set()


def imitable(answer: Message | str, control: frozenset[str]) -> bool:
    """Return whether an answer contains none of the special tokens in `control`.

    A special token in an answer would teach the model to end its turn early and to write the user's next message. So a malicious
    correction could forge messages of other users.
    """
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return not any(word in text for word in control)


OMITTED = "with tools, which the chat template of the model omits"
"""Reason for leaving an example out."""


def shows_tools(tokenizer: Any) -> bool:
    """Return whether the chat template renders tools, tool calls and their results. Other conversations need no such template."""
    call = {"id": "call00000", "type": "function", "function": {"name": "zq_name", "arguments": {"zq_key": "zq_value"}}}
    conversation: list[Message] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "zq_result", "tool_call_id": "call00000", "name": "zq_name"},
    ]
    function = {"name": "zq_tool", "description": "", "parameters": {"type": "object", "properties": {}}}
    try:
        text = _text(tokenizer, conversation, [{"type": "function", "function": function}])
    except Permanent:
        return False
    return all(mark in text for mark in ("zq_tool", "zq_name", "zq_result"))


def encode(tokenizer: Any, example: Example) -> PairSize:
    """Tokenize one example: first what a server feeds the model before it answers, then each answer as the model would continue it.

    Raises Permanent if the template cannot render the example, or omits its tools or calls.
    """
    _tools_are_rendered(tokenizer, example)
    _calls_are_rendered(tokenizer, example)
    before = rendered_prompt(tokenizer, example.prompt, example.tools)
    prompt = token_ids(tokenizer, before)
    chosen, *rejected = (_continued(tokenizer, before, prompt, _continuation(tokenizer, example, last, before)) for last in example.answers)
    return PairSize(prompt, chosen, *rejected or [[]])


def _continuation(tokenizer: Any, example: Example, answer: Message, before: str) -> str:
    """Return what follows the rendered prompt `before` if the model gives `answer`: the answer and the end of the turn.

    A template may end a prompt with something that it does not write before a given answer: white space, or the begin of a thought. A
    part of the answer that it then removes, the thought itself, was written after that begin, so it stays in the answer.
    """
    whole = _text(tokenizer, [*example.prompt, answer], example.tools)
    common = common_length(before, whole)
    if not before[common:].strip():
        return whole[common:]
    head, found, tail = _text(tokenizer, [*example.prompt, {**answer, "content": _MARK}], example.tools).rpartition(_MARK)
    content, written = str(answer["content"]), whole.removeprefix(head)
    if found and len(written) < len(whole) and (answer.get("tool_calls") or written.startswith(content.strip())):
        return written
    if found and not answer.get("tool_calls"):
        return content.removeprefix(before.removeprefix(head)) + tail
    raise Permanent(
        "the model's chat template renders an answer in a form that cannot follow its generation prompt; adopt another template"
    )


def _continued(tokenizer: Any, before: str, prompt: list[int], text: str) -> list[int]:
    """Return the tokens of `text` after the tokens `prompt` of the text `before`. A token never spans both, as in a server."""
    whole = token_ids(tokenizer, before + text)
    if whole[: len(prompt)] == prompt:
        return whole[len(prompt) :]
    for other in _OTHERS:  # within a text, because some tokenizers add a space to its begin
        first, both = token_ids(tokenizer, other), token_ids(tokenizer, other + text)
        if both[: len(first)] == first:
            return both[len(first) :]
    return token_ids(tokenizer, text)


_OTHERS = ("\n", "a", ".")
"""Texts of which one does not form a token together with the begin of an answer."""


def _tools_are_rendered(tokenizer: Any, example: Example) -> None:
    if example.tools and _text(tokenizer, example.prompt, example.tools) == _text(tokenizer, example.prompt, None):
        raise Permanent(
            "the conversation names tools, but the model's chat template omits them; adopt a model whose template renders `tools`"
        )


def _calls_are_rendered(tokenizer: Any, example: Example) -> None:
    if not example.calls:
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
    try:
        return str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False))
    except Exception as error:  # a template is a program, which fails in its own ways
        raise Permanent(
            f"the model's chat template cannot render a conversation ({error}); fix the template, or remove such conversations"
        ) from error
