"""Says what cannot work with a model: its chat template, its end of turn, its context, the adapter and the machines of a recipe.

    python -m ratchet.trainers.job.model_fit FOLDER [--own-server]        without a recipe; prints problems and warnings as JSON

Without this, such a model is found by a job that fails after a person has approved it, or by a gate in which no answer ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import ConfigError
from ratchet.runtime.tokenizer import read_config, stop_tokens
from ratchet.trainers.job.start_tokenizer import hide_torch, load_tokenizer
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.recipe import Recipe

_ANSWER = "zq answer"


def refuse_misfit(folder: Path, tokenizer: Any, recipe: Recipe, on_nemo: bool) -> None:
    """Raise ConfigError with each reason why a model cannot be trained with a recipe, and its remedy.

    `folder` is the model's folder, `tokenizer` its tokenizer. `on_nemo` says whether the job runs on NeMo RL.
    """
    found = [*model_problems(folder, tokenizer), *recipe_problems(folder, recipe, on_nemo)]
    if found:
        raise ConfigError("; ".join(found))


def recipe_problems(folder: Path, recipe: Recipe, on_nemo: bool) -> list[str]:
    """Return why the model in `folder` cannot be trained with a recipe, each with its remedy."""
    config = read_config(folder / "config.json")
    found = [*_adapter(config, recipe)]
    if isinstance(recipe, GRPORecipe):
        found += _prompt_on_nemo(config, recipe) if on_nemo else _prompt(config, recipe)
    return [*found, *_shards(config, recipe)] if on_nemo else found


def model_problems(folder: Path, tokenizer: Any) -> list[str]:
    """Return what cannot work with a model in serving and in any training."""
    if not tokenizer.chat_template:
        return ["the tokenizer has no chat template; add chat_template.jinja to the model folder"]
    stops = stop_tokens(folder, tokenizer)
    if not stops:
        return ["neither the tokenizer nor generation_config.json names an end-of-sequence token; set eos_token_id"]
    try:
        turn = str(tokenizer.apply_chat_template(_turn(), tokenize=False))
    except Exception as error:  # a template may raise anything
        return [
            f"the chat template cannot render a question and an answer ({type(error).__name__}); use the template of the model's authors"
        ]
    _, found, end = turn.partition(_ANSWER)
    if not found:
        return ["the chat template leaves out the assistant's answer; use the template of the model's authors"]
    ids = tokenizer(end, add_special_tokens=False)["input_ids"] if end else []
    if stops.isdisjoint(ids):
        shown = f"{end.strip()[:40]!r}" if end.strip() else "nothing"
        names = ", ".join(repr(tokenizer.decode([token])) for token in sorted(stops))
        return [
            f"no answer can end: the chat template writes {shown} after an answer, and a server stops at {names}; add the token that the "
            "template writes to eos_token_id of generation_config.json, or let the template write one of these"
        ]
    return []


def _turn() -> list[dict[str, str]]:
    return [{"role": "user", "content": "zq question"}, {"role": "assistant", "content": _ANSWER}]


def _adapter(config: dict[str, Any], recipe: Recipe) -> Iterator[str]:
    lora = recipe.lora
    named = () if lora is None or isinstance(lora.targets, str) else lora.targets
    if config.get("tie_word_embeddings") and any(name.endswith("lm_head") for name in named):
        yield "lora.targets names lm_head, but it is tied to the embedding, so its adapter cannot be merged; remove lm_head"


def row_limit(folder: Path, max_length: int) -> int:
    """Return the tokens that a row may have: `max_length`, and at most the context of the model in `folder`."""
    context = context_of(folder)
    return max_length if context is None else min(max_length, context)


def context_of(folder: Path) -> int | None:
    """Return the context of the model in `folder` in tokens; None if its configuration does not say."""
    return _tokens(read_config(folder / "config.json"))


def _tokens(config: dict[str, Any]) -> int | None:
    """Return the context of a model in tokens; None if its configuration does not say."""
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    context = text.get("max_position_embeddings")
    return context if isinstance(context, int) else None


def _prompt_on_nemo(config: dict[str, Any], recipe: GRPORecipe) -> Iterator[str]:
    """The release needs room for the longest prompt; TRL leaves out prompts that are too long."""
    context, wanted = _tokens(config), recipe.nemo.max_prompt + recipe.max_completion
    if context is not None and wanted > context:
        room = context - recipe.max_completion
        remedy = f"set nemo.max_prompt to {room} or less" if room > 0 else "lower max_completion and nemo.max_prompt"
        yield f"nemo.max_prompt + max_completion = {wanted} tokens exceed the model's context of {context} tokens; {remedy}"


def _prompt(config: dict[str, Any], recipe: GRPORecipe) -> Iterator[str]:
    context = _tokens(config)
    if context is not None and recipe.max_completion >= context:
        yield f"max_completion = {recipe.max_completion} leaves no room for a prompt in the model's context of {context}; lower it"


def _shards(config: dict[str, Any], recipe: Recipe) -> Iterator[str]:
    """With an uneven split of the vocabulary, the release computes wrong log-probabilities without an error."""
    inner = config.get("text_config")
    words, parts = (inner if isinstance(inner, dict) else config).get("vocab_size"), recipe.nemo.tensor_parallel
    if isinstance(words, int) and words % parts:
        yield (
            f"nemo.tensor_parallel = {parts} does not divide the model's vocabulary of {words} tokens, so NeMo RL would train on wrong "
            "log-probabilities; use another number, or pad the embedding (resize_token_embeddings with pad_to_multiple_of)"
        )


def main() -> int:
    """Print the problems of the model folder that the command names, and in what it is not trained as it is served. Returns 0.

    With `--own-server`, it is a problem if Transformers cannot load its configuration or its tokenizer. Otherwise another package serves
    it, which may have its own form of both, and the tokenizer's error is raised.
    """
    hide_torch()
    from ratchet.trainers.job.trl.as_served import served_warnings

    folder, own = Path(sys.argv[1]), "--own-server" in sys.argv[2:]
    problems, warnings = _unloadable(folder) if own else [], []
    if not problems:
        tokenizer = load_tokenizer(folder)
        problems = model_problems(folder, tokenizer)
        warnings = [] if problems else served_warnings(tokenizer)
    sys.stdout.write(json.dumps({"problems": problems, "warnings": warnings}))
    return 0


def _unloadable(folder: Path) -> list[str]:
    """Return why Transformers cannot load the configuration or the tokenizer of a model."""
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the library may raise anything for the content of a file
        return [
            f"transformers cannot load config.json ({_first(error)}); use an architecture that the installed release has itself, or "
            "install a release that has it"
        ]
    try:
        load_tokenizer(folder)
    except Exception as error:
        return [f"transformers cannot load the tokenizer ({_first(error)}); copy all its files, at least tokenizer.json, into the folder"]
    return []


def _first(error: Exception) -> str:
    """Return the kind of an error with the first sentence of its text, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text.partition('. ')[0][:200]}" if text else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
