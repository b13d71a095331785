"""Says where the tokens before an answer differ between a training and a server, for a table of conversations.

Training takes the server's own rendering as the prompt, so the two are equal wherever the template depends on the conversation alone. What
remains cannot be made equal: a template that writes the date, and one that opens a thought which given answers do not close.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ratchet.contracts.conversation import Message
from ratchet.runtime.chat_template import prompt_text, template_messages, token_ids
from ratchet.trainers.job.trl.conversations import Example, encode, shows_tools

_AROUND = 4
"""Tokens that a report shows from the first difference on, and before it."""
_LATER = timedelta(days=400)
"""Another day of the week, of the month, and of the year."""
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


def differences(tokenizer: Any, later: timedelta = timedelta(0)) -> list[Difference]:
    """Return the differences between training now and a server that runs `later`, at most one for each conversation.

    A conversation that the template refuses is left out, because it is neither served nor trained on.
    """
    tools = shows_tools(tokenizer)
    found = []
    for name, (messages, offered) in CONVERSATIONS.items():
        if offered and not tools:
            continue
        try:
            serving = _served(tokenizer, messages, offered, later)
            training = encode(tokenizer, Example(template_messages(messages), _ANSWER, None, offered, 1.0)).prompt
        except Exception:  # a template may raise anything
            continue
        found.append(first_difference(name, training, serving))
    return [one for one in found if one]


def _served(tokenizer: Any, messages: Sequence[Message], tools: Any, later: timedelta) -> list[int]:
    if not later:
        return token_ids(tokenizer, prompt_text(tokenizer, messages, tools))
    day = {"strftime_now": lambda form: (datetime.now() + later).strftime(form)}  # noqa: DTZ005 - as the library's own function
    plain = template_messages(messages)
    text = tokenizer.apply_chat_template(plain, tools=tools or None, tokenize=False, add_generation_prompt=True, **day)
    return token_ids(tokenizer, str(text))


def served_warnings(tokenizer: Any) -> list[str]:
    """Return in what a model is not trained as it is served, each with its tokens and its remedy."""
    return [*_differing(tokenizer), *_dated(tokenizer), *_opened(tokenizer)]


def _differing(tokenizer: Any) -> Iterator[str]:
    for one in differences(tokenizer)[:1]:
        remedy = "use a chat template that renders a conversation alike before each answer"
        yield f"the tokens before an answer differ between training and serving {one.sentence(tokenizer)}; {remedy}"


def _dated(tokenizer: Any) -> Iterator[str]:
    for one in differences(tokenizer, _LATER)[:1]:
        remedy = "write a fixed date into chat_template.jinja, or accept that training shows one date only"
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
    if not found or whole.startswith(before) or not before.startswith(head):
        return
    opened = before[len(head) :]
    ids = [*pair.prompt[-_AROUND:], *pair.chosen[:_AROUND]]
    yield (
        f"the chat template opens {opened.strip()!r} before each answer, and does not close it before a given one: training has "
        f"{tokenizer.decode(ids)!r} {ids}; let the server return answers together with their thoughts (vLLM: without --reasoning-parser), "
        "so that logged answers close them, or use a template whose prompt ends with a closed thought. Corrections close none"
    )
