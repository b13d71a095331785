"""Tests that each row that cannot be trained on is left out alone, under its reason, with chat templates as models have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.runtime.tokenizer import with_ends
from ratchet.trainers.job.left_out import UNRENDERED
from ratchet.trainers.job.trl.conversations import OMITTED, Example
from ratchet.trainers.job.trl.fitting import CONTROL, EQUAL, fit, long_answer, long_prompt
from tests.unit.trainers.conftest import WORDS
from tests.unit.trainers.job.trl.templates import SHAPES

pytestmark = pytest.mark.slow  # transformers takes seconds to load

USER = [{"role": "user", "content": "one two"}]
SYSTEM = [{"role": "system", "content": "three"}, *USER]
TWO_USERS = [*USER, {"role": "user", "content": "four"}]
ONLY_SYSTEM = [{"role": "system", "content": "three"}]
TOOLS = [{"type": "function", "function": {"name": "left", "parameters": {}}}]


def pair(prompt: list[Any], chosen: str = "yes", rejected: str | None = "no", tools: Any = None) -> Example:
    """Return a preference pair, or a demonstration without `rejected`."""
    other = None if rejected is None else {"role": "assistant", "content": rejected}
    return Example(prompt, {"role": "assistant", "content": chosen}, other, tools, 1.0)


ROWS = {
    "plain": pair(USER),
    "system": pair(SYSTEM),
    "two users": pair(TWO_USERS),
    "only system": pair(ONLY_SYSTEM),
    "tools": pair(USER, tools=TOOLS),
    "spaces": pair(USER, "yes", "  yes "),
    "same end": pair(USER, "yes | four", "no | four"),
    "long prompt": pair([{"role": "user", "content": "one " * 40}]),
    "long answer": pair(USER, "yes " * 40),
    "long rejected": pair(USER, "yes", "no " * 40),
    "special": pair(USER, "yes <end> <user>"),
    "shown": pair(USER, rejected=None),
}
LONG = {"long prompt": long_prompt(32), "long answer": long_answer(32)}
ALWAYS = {"tools": OMITTED, "special": CONTROL, "spaces": EQUAL, **LONG}  # the tokenizer of the tiny model ignores spaces
EVERYTHING = dict.fromkeys(ROWS, UNRENDERED) | {"tools": OMITTED, "special": CONTROL}
EXPECTED: dict[str, dict[str, str]] = {
    "no system role": ALWAYS | {"system": UNRENDERED, "only system": UNRENDERED},
    "strict alternation": ALWAYS | {"system": UNRENDERED, "two users": UNRENDERED, "only system": UNRENDERED},
    "keeps what follows a mark": ALWAYS | {"same end": EQUAL},
    "fails on text": EVERYTHING,
    "needs a user": ALWAYS | {"only system": UNRENDERED},
}
"""Shape of a template -> the rows that are left out, with their reasons; `ALWAYS` for each other shape."""


@pytest.fixture
def load(tiny_model: Path) -> Callable[[str], Any]:
    """Return a function that loads the tokenizer of the tiny model with a template."""
    from transformers import AutoTokenizer

    def loaded(template: str) -> Any:
        tokenizer = AutoTokenizer.from_pretrained(tiny_model)
        tokenizer.chat_template = template
        return tokenizer

    return loaded


@pytest.mark.parametrize("shape", SHAPES)
def test_each_row_is_left_out_alone_and_under_its_reason(shape: str, load: Callable[[str], Any]) -> None:
    expected = EXPECTED.get(shape, ALWAYS)
    tokenizer = load(SHAPES[shape])
    found = {}
    for name, example in ROWS.items():
        kept, left = fit(tokenizer, [example], 32)
        found[name] = next(iter(left), None)
        assert (len(kept), sum(left.values())) in ((1, 0), (0, 1)), "every row is kept or counted"
    assert {name: reason for name, reason in found.items() if reason} == expected
    kept, left = fit(tokenizer, list(ROWS.values()), 32)
    assert [list(ROWS)[number] for number, _ in kept] == [name for name in ROWS if name not in expected], "no row disturbs another one"
    assert len(kept) + sum(left.values()) == len(ROWS)


def test_a_chosen_answer_keeps_its_end_and_a_rejected_one_is_cut(load: Callable[[str], Any]) -> None:
    tokenizer = load(SHAPES["plain"])
    kept, _ = fit(tokenizer, [ROWS["plain"], ROWS["long rejected"]], 32)
    for _, tokens in kept:
        assert tokenizer.decode(tokens.chosen).split() == ["yes", "<end>"]
    assert len(kept[1][1].prompt) + len(kept[1][1].rejected) == 32


def other_end() -> Any:
    """Return a tokenizer that names another end than the chat template writes after an answer, which it does not call special."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<pad>", unk_token="<unk>")
    tokenizer.add_tokens(["<end>"])
    return tokenizer


TOKENIZERS: dict[str, Callable[[Path], Any]] = {
    "no padding": lambda folder: changed(folder, pad_token=None),
    "no begin": lambda folder: changed(folder, bos_token=None),
    "a begin": lambda folder: changed(folder, bos_token="<user>"),
    "no end": lambda folder: changed(folder, eos_token=None),
    "neither end nor padding": lambda folder: changed(folder, eos_token=None, pad_token=None),
    "another end than that of the turn": lambda folder: changed(folder, eos_token="<pad>"),
    "an end of the turn that is no special token": lambda _: other_end(),
}


def changed(folder: Path, **tokens: str | None) -> Any:
    """Return the tokenizer of the tiny model with other special tokens, as a job loads it."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    for name, token in tokens.items():
        setattr(tokenizer, name, token)
    return with_ends(tokenizer, folder)


@pytest.mark.parametrize("shape", ["plain", "every message alike", "opens a thought", "marks the answer"])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_an_answer_ends_with_the_end_of_the_turn_whatever_the_tokenizer_names(kind: str, shape: str, tiny_model: Path) -> None:
    tokenizer = TOKENIZERS[kind](tiny_model)
    tokenizer.chat_template = SHAPES[shape]
    ((_, kept),), left = fit(tokenizer, [ROWS["plain"]], 32)
    assert not left
    assert tokenizer.decode(kept.chosen).split() == ["yes", "<end>"]
    assert tokenizer.decode(kept.prompt).split().count("<user>") == 1, "no token is added before the prompt"
    assert fit(tokenizer, [ROWS["special"]], 32) == ([], {CONTROL: 1}), "no answer may contain the end of a turn"


def test_a_tokenizer_without_end_and_padding_gets_those_of_the_server(tiny_model: Path) -> None:
    tokenizer = changed(tiny_model, eos_token=None, pad_token=None)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<end>", "<end>")
    assert changed(tiny_model).pad_token == "<pad>", "one that has both stays as it is"
