"""Tests of what cannot work with a model and a recipe, which is found before a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.trainers.job.model_fit import model_problems, refuse_misfit, row_limit
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.sft import SFTRecipe
from tests.unit.trainers.conftest import write_model

pytestmark = pytest.mark.slow  # transformers takes seconds to load

NO_END = "no answer can end: the chat template writes {} after an answer"
USERS = "{% for m in messages %}{{ '<assistant> ' if m.role == 'assistant' else '<user> ' }}{{ m.content }} END{% endfor %}"
"""A template that writes END after each turn."""


def tokenizer_of(folder: Path, template: str | None = None, **changes: Any) -> Any:
    """Return the tokenizer of the tiny model, with changes."""
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(folder)
    if template is not None:
        found.chat_template = template
    for name, value in changes.items():
        setattr(found, name, value)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model")


def test_a_model_whose_answers_end_has_no_problem(folder: Path) -> None:
    assert model_problems(folder, tokenizer_of(folder)) == []


@pytest.mark.parametrize(
    ("template", "changes", "said"),
    [
        ("", {}, "the tokenizer has no chat template; add chat_template.jinja"),
        (
            USERS.replace("END", "<user>"),
            {},
            NO_END.format("'<user>'") + ", and a server stops at '<end>'",
        ),
        (USERS.replace("END", ""), {}, NO_END.format("nothing")),
        ("{{ raise_exception('no') }}", {}, "the chat template cannot render a question and an answer (TemplateError)"),
        ("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}", {}, "leaves out the assistant's answer"),
    ],
)
def test_a_model_whose_answers_cannot_end_is_found(folder: Path, template: str, changes: dict[str, Any], said: str) -> None:
    (problem,) = model_problems(folder, tokenizer_of(folder, template, **changes))
    assert said in problem


def test_the_end_of_turn_may_be_another_token_if_the_server_stops_at_it(folder: Path, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(folder, USERS.replace("END", "<user>"))
    ids = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<user>")]
    for given in (ids, ids[1]):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": given}))
        assert model_problems(tmp_path, tokenizer) == []


def test_a_tokenizer_without_any_end_is_found(tmp_path: Path, folder: Path) -> None:
    assert model_problems(tmp_path, tokenizer_of(folder, eos_token=None))[0].startswith("neither the tokenizer nor generation_config.json")


@pytest.mark.parametrize(
    ("recipe", "config", "on_nemo", "said"),
    [
        (complete(DPORecipe, {"lora": {"targets": ["lm_head"]}}), {"tie_word_embeddings": True}, False, "it is tied to the embedding"),
        (complete(GRPORecipe, {"max_completion": 256}), {"max_position_embeddings": 256}, False, "leaves no room for a prompt"),
        (
            complete(GRPORecipe, {"nemo": {"tensor_parallel": 2}}),
            {"vocab_size": 19},
            True,
            "does not divide the model's vocabulary of 19",
        ),
        (
            complete(SFTRecipe, {"nemo": {"tensor_parallel": 2}}),
            {"text_config": {"vocab_size": 19}},
            True,
            "does not divide the model's vocabulary of 19",
        ),
    ],
)
def test_a_recipe_that_cannot_work_with_the_model_is_refused_with_its_remedy(
    folder: Path, tmp_path: Path, recipe: Any, config: dict[str, Any], on_nemo: bool, said: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=said) as refused:
        refuse_misfit(tmp_path, tokenizer_of(folder), recipe, on_nemo)
    assert ";" in str(refused.value), "the remedy follows"


def test_a_vocabulary_that_is_divided_or_not_sharded_is_accepted(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 20}))
    recipe = complete(GRPORecipe, {"nemo": {"tensor_parallel": 2}})
    refuse_misfit(tmp_path, tokenizer_of(folder), recipe, on_nemo=True)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 19}))
    refuse_misfit(tmp_path, tokenizer_of(folder), recipe, on_nemo=False)


@pytest.mark.parametrize("config", [{"max_position_embeddings": 256}, {"text_config": {"max_position_embeddings": 256}}])
def test_a_row_is_at_most_as_long_as_the_context(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (row_limit(tmp_path, 300), row_limit(tmp_path, 100)) == (256, 100)
    (tmp_path / "config.json").write_text("{}")
    assert row_limit(tmp_path, 300) == 300
