"""Tests that the tokens before an answer in training are those that the server feeds the model, for many shapes of chat templates."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from ratchet.runtime.chat_template import template_messages
from ratchet.trainers.job.prompt_length import rendered_prompt
from ratchet.trainers.job.trl.as_served import CONVERSATIONS, differences, first_difference, served_warnings
from ratchet.trainers.job.trl.conversations import Example, encode
from ratchet.trainers.job.trl.sft import dataset_of, rows
from ratchet.trainers.recipes.sft import SFTRecipe
from tests.unit.trainers.job.trl.templates import SHAPES, letters

if TYPE_CHECKING:
    from ratchet.local.serve.generate import Generated, GenerationRow, Model

pytestmark = pytest.mark.slow  # torch and transformers take seconds to load

ANSWER = {"role": "assistant", "content": "three yes"}
REFUSED = {
    "plain": {"tools", "a tool's result"},
    "no system role": {"system", "tools", "a tool's result"},
    "strict alternation": {"system", "tools", "a tool's result"},
    "fails on text": set(CONVERSATIONS),
}
"""Shape -> conversations that are not trained on: the template refuses them or omits the tools. Those of `plain` for each other shape."""


class Asked:
    """The embedded server, which keeps the prompts that it would feed the model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.plain = model._encoder
        """The tokenizer of the tiny model."""
        self._fed: list[list[int]] = []
        model.generate = self._generate  # type: ignore[method-assign]
        from ratchet.local.serve.app import build_app

        self._client = TestClient(build_app(model, ["m"]))

    def __enter__(self) -> Asked:
        self._client.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._client.__exit__(*error)

    def _generate(self, rows: Any, stopped: Any = None) -> list[Generated]:
        from ratchet.local.serve.generate import Generated

        asked: list[GenerationRow] = list(rows)
        self._fed += [row.prompt for row in asked]
        return [Generated("", [], "stop", None) for _ in asked]

    def fed(self, tokenizer: Any, messages: Any, tools: Any) -> list[int] | None:
        """Return the tokens before the answer to a request, with this tokenizer; None if its template refuses the request."""
        self._model._encoder = tokenizer
        done = self._client.post("/v1/chat/completions", json={"model": "m", "messages": messages, "tools": tools})
        assert done.status_code in (200, 400), done.text
        return self._fed[-1] if done.status_code == 200 else None


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Any:
    from ratchet.local.serve.generate import Model

    model = Model(tiny_model, threads=1)
    model.context = 1 << 20
    with Asked(model) as asked:
        yield asked


@pytest.mark.parametrize("shape", SHAPES)
def test_the_tokens_before_an_answer_are_those_of_the_server(shape: str, server: Asked, tmp_path: Path) -> None:
    tokenizer = server.plain
    tokenizer.chat_template = SHAPES[shape]
    refused = set()
    for name, (messages, tools) in CONVERSATIONS.items():
        served = server.fed(tokenizer, messages, tools)
        shown = {
            "prompt": [json.dumps(messages)],
            "answer": ["three yes"],
            "weight": [1.0],
            "tools": [json.dumps(tools) if tools else None],
        }
        pq.write_table(pa.table(shown), tmp_path / "demonstrations.parquet")
        trained, _ = dataset_of(tokenizer, rows(tmp_path, SFTRecipe()), 1 << 20)
        if not trained:
            refused.add(name)
            continue
        assert served is not None, name
        (row,) = trained
        assert row["input_ids"][: row["completion_mask"].index(1)] == served, name
        answer = [token for token, is_answer in zip(row["input_ids"], row["completion_mask"], strict=True) if is_answer]
        assert tokenizer.decode(answer).startswith("three yes"), name
        sampled = tokenizer(rendered_prompt(tokenizer, messages, tools), add_special_tokens=False)["input_ids"]
        assert sampled == served, "GRPO samples from the same tokens"
    assert refused == REFUSED.get(shape, REFUSED["plain"])
    assert differences(tokenizer) == []


THOUGHTFUL = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<assistant> {{ m.content.split('</up>')[-1].strip() }} <end>"
    "{% else %}<user> {{ m.content }} {% endif %}{% endfor %}{% if add_generation_prompt %}<assistant> <up> {% endif %}"
)
"""A template that opens a thought before each answer, and removes thoughts from given answers."""


@pytest.mark.parametrize(
    ("content", "trained"),
    [
        ("three", "three <end>"),
        ("one two </up> three", "one two </up> three <end>"),
        ("<up> one two </up> three", "one two </up> three <end>"),
    ],
)
def test_an_answer_follows_the_thought_that_the_prompt_opens(content: str, trained: str) -> None:
    tokenizer = letters(THOUGHTFUL)
    user = [{"role": "user", "content": "one"}]
    pair = encode(tokenizer, Example(user, {"role": "assistant", "content": content}, None, None, 1.0))
    assert tokenizer.decode(pair.prompt) == "<user> one <assistant> <up> "
    assert tokenizer.decode(pair.chosen).split() == trained.split()
    (warning,) = served_warnings(tokenizer)
    assert "opens '<up>' before each answer" in warning
    assert str(pair.prompt[-4:])[:-1] in warning, "with the tokens"
    assert served_warnings(tokenizer, given=False) == [], "GRPO has no given answers"


def test_white_space_at_the_end_of_a_prompt_may_differ() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}<up></up>{% endif %}{{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}assistant:<up>\n{% endif %}"
    )
    tokenizer = letters(template)
    pair = encode(tokenizer, Example([{"role": "user", "content": "one"}], ANSWER, None, None, 1.0))
    assert tokenizer.decode([*pair.prompt, *pair.chosen]) == "user:one<end>assistant:<up>\n</up>three yes<end>"
    assert served_warnings(tokenizer) == [], "the given answer closes the thought"


def test_no_token_spans_the_prompt_and_the_answer() -> None:
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    tokenizer = letters(template)
    newlines = tokenizer("\n\n", add_special_tokens=False)["input_ids"]
    assert len(newlines) == 1, "the tokenizer has a token for two line ends"
    pair = encode(tokenizer, Example([{"role": "user", "content": "one"}], {"role": "assistant", "content": "\nyes"}, None, None, 1.0))
    assert pair.prompt == tokenizer("one\n", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode([*pair.prompt, *pair.chosen]) == "one\n\nyes\n"


def test_a_date_in_the_template_is_told_with_the_tokens_of_both_sides() -> None:
    tokenizer = letters("Today {{ strftime_now('%Y') }} " + SHAPES["plain"])
    (warning,) = served_warnings(tokenizer)
    assert "writes the current date before an answer (one turn, after " in warning
    assert re.search(r"training '.*' \[[\d, ]+\], serving '.*%Y.*' \[[\d, ]+\]; write a fixed date", warning)
    assert served_warnings(letters("{{ strftime_now('%Y')[:0] }}" + SHAPES["plain"])) == [], "a date that is not written"


def test_the_first_difference_shows_what_is_around_it() -> None:
    assert first_difference("x", [1, 2], [1, 2]) is None
    found = first_difference("x", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [0, 1, 2, 3, 4, 5, 99])
    assert found == ("x", 6, [2, 3, 4, 5, 6, 7, 8, 9], [2, 3, 4, 5, 99])
    shorter = first_difference("x", [0, 1], [0, 1, 2])
    assert shorter is not None
    assert (shorter.equal, shorter.training, shorter.serving) == (2, [0, 1], [0, 1, 2])


def real(name: str) -> str:
    """Return the chat template of a model family that TRL contains."""
    import trl

    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()


@pytest.mark.parametrize(
    ("family", "conversations", "said"),
    [
        ("qwen2_5", 8, []),
        ("qwen3", 8, []),
        ("qwen3_5_think", 8, []),
        ("llama3", 6, []),
        ("llama3_2", 8, ["writes the current date"]),
        ("gemma3", 6, []),
        ("gptoss", 7, ["writes the current date"]),
        ("phi3_5", 6, []),
        ("deepseek_r1_distill", 6, ["opens '<think>' before each answer"]),
    ],
)
def test_the_templates_of_model_families_are_trained_as_served(family: str, conversations: int, said: list[str], server: Asked) -> None:
    tokenizer = letters(real(family))
    trained = 0
    for messages, tools in CONVERSATIONS.values():
        try:
            pair = encode(tokenizer, Example(template_messages(messages), ANSWER, None, tools, 1.0))
        except Exception:
            continue
        trained += 1
        assert pair.prompt == server.fed(tokenizer, messages, tools)
        assert "three yes" in tokenizer.decode(pair.chosen)
    assert trained == conversations
    found = served_warnings(tokenizer)
    assert len(found) == len(said)
    assert all(part in warning for part, warning in zip(said, found, strict=True))
