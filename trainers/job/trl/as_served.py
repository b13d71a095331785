"""Says where the tokens before an answer differ between a training and a server, for a table of conversations.

Training takes the server's own rendering as the prompt, so the two are equal wherever the template depends on the conversation alone. What
remains cannot be made equal: a template that writes the date, and one that opens a thought which given answers do not close.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ratchet.contracts.conversation import Message
from ratchet.runtime.chat_template import prompt_text, template_messages, token_ids
from ratchet.trainers.job.trl.conversations import Example, encode, shows_tools

_AROUND = 4
"""Tokens that a report shows from the first difference on, and before it."""
_ANY_DAY = "{%- macro strftime_now(format) -%}{{ format }}{%- endmacro -%}"
"""Begin of a template that then writes the form of a date in place of the date."""
_ANSWER: Message = {"role": "assistant", "content": "zq answer"}
_USER: Message = {"role": "user", "content": "zq question"}
_CALL = {"id": "call00000", "type": "function", "function": {"name": "zq_tool", "arguments": '{"zq_key": "zq value"}'}}
_TOOL = {
    "type": "function",
    "function": {
        "name": "zq_tool",
        "description": "zq",
        "parameters": {"type": "object", "properties": {"zq_key": {"type": "string", "description": "zq"}}},
    },
}

CONVERSATIONS: dict[str, tuple[list[Message], list[dict[str, Any]] | None]] = {
    "one turn": ([_USER], None),
    "text in parts": ([{"role": "user", "content": [{"type": "text", "text": "zq question"}]}], None),
    "white space": ([{"role": "user", "content": " zq\n\nquestion \n"}], None),
    "several turns": ([_USER, _ANSWER, {"role": "user", "content": "zq more"}], None),
    "a thought in an earlier turn": ([_USER, {"role": "assistant", "content": "<think>\nzq\n</think>\n\nzq answer"}, _USER], None),
    "system": ([{"role": "system", "content": "zq rule"}, _USER], None),
    "tools": ([_USER], [_TOOL]),
    "a tool's result": (
        [
            _USER,
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "content": "zq result", "tool_call_id": "call00000", "name": "zq_tool"},
        ],
        [_TOOL],
    ),
}
"""Name -> messages as an application logs them, and tools."""


class Difference(NamedTuple):
    """Token ids before an answer, in training and in a server, from a little before the first difference on."""

    conversation: str
    equal: int
    """Number of equal tokens before the first difference."""
    training: list[int]
    serving: list[int]

    def sentence(self, tokenizer: Any) -> str:
        """Return both sides as text and ids."""
        shown = (f"{tokenizer.decode(ids)!r} {ids}" for ids in (self.training, self.serving))
        return f"({self.conversation}, after {self.equal} equal tokens) training {next(shown)}, serving {next(shown)}"


def first_difference(conversation: str, training: Sequence[int], serving: Sequence[int]) -> Difference | None:
    """Return where the token ids of the two sides first differ; None if they are equal."""
    if list(training) == list(serving):
        return None
    equal = next((at for at, (a, b) in enumerate(zip(training, serving, strict=False)) if a != b), min(len(training), len(serving)))
    begin, end = max(0, equal - _AROUND), equal + _AROUND
    return Difference(conversation, equal, list(training[begin:end]), list(serving[begin:end]))


def differences(tokenizer: Any, any_day: bool = False) -> list[Difference]:
    """Return the differences between training and a server, at most one for each conversation.

    With `any_day`, the server's side has the form of a date where the template writes the current date. A conversation that the template
    refuses is left out, because it is neither served nor trained on.
    """
    tools = shows_tools(tokenizer)
    both = {name: _both(tokenizer, *one, any_day) for name, one in CONVERSATIONS.items() if tools or not one[1]}
    found = [first_difference(name, *sides) for name, sides in both.items() if sides]
    return [one for one in found if one]


def _both(tokenizer: Any, messages: Sequence[Message], tools: Any, any_day: bool) -> tuple[list[int], list[int]] | None:
    """Return the tokens before an answer in training and in a server; None if the template refuses the conversation."""
    example = Example(template_messages(messages), _ANSWER, None, tools, 1.0)
    try:
        serving = _any_day(tokenizer, messages, tools) if any_day else token_ids(tokenizer, prompt_text(tokenizer, messages, tools))
        return encode(tokenizer, example).prompt, serving
    except Exception:  # a template may raise anything
        return None


def _any_day(tokenizer: Any, messages: Sequence[Message], tools: Any) -> list[int]:
    template = _ANY_DAY + tokenizer.get_chat_template(tools=tools)
    plain = template_messages(messages)
    return token_ids(
        tokenizer, tokenizer.apply_chat_template(plain, chat_template=template, tools=tools, tokenize=False, add_generation_prompt=True)
    )


def served_warnings(tokenizer: Any, given: bool = True) -> list[str]:
    """Return in what a model is not trained as it is served, each with its tokens and its remedy.

    `given` says whether a training has given answers. GRPO trains on what the model writes itself.
    """
    return [*_differing(tokenizer), *_dated(tokenizer), *(_opened(tokenizer) if given else ())]


def _differing(tokenizer: Any) -> Iterator[str]:
    for one in differences(tokenizer)[:1]:
        remedy = "use a chat template that renders a conversation alike before each answer"
        yield f"the tokens before an answer differ between training and serving {one.sentence(tokenizer)}; {remedy}"


def _dated(tokenizer: Any) -> Iterator[str]:
    for one in differences(tokenizer, any_day=True)[:1]:
        remedy = "write a fixed date into chat_template.jinja, or accept that a training shows the date of its day in all rows"
        yield f"the chat template writes the current date before an answer {one.sentence(tokenizer)}; {remedy}"


def _opened(tokenizer: Any) -> Iterator[str]:
    """The template may open a thought in the prompt that it neither repeats nor closes in a given answer."""
    messages = [_USER]
    try:
        before = prompt_text(tokenizer, messages)
        whole = str(tokenizer.apply_chat_template([*messages, _ANSWER], tokenize=False))
        pair = encode(tokenizer, Example(messages, _ANSWER, None, None, 1.0))
    except Exception:  # a template may raise anything; `model_problems` says so
        return
    head, found, _ = whole.partition(str(_ANSWER["content"]))
    opened = before.removeprefix(head).strip()
    if not found or not opened or not before.startswith(head):
        return
    ids = [*pair.prompt[-_AROUND:], *pair.chosen[:_AROUND]]
    yield (
        f"the chat template opens {opened!r} before each answer, and does not close it before a given one: training has "
        f"{tokenizer.decode(ids)!r} {ids}; let the server return answers together with their thoughts (vLLM: without --reasoning-parser), "
        "so that logged answers close them, or use a template whose prompt ends with a closed thought. Corrections close none"
    )
