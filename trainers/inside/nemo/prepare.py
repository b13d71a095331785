"""Before a run: its data files and its configuration, checked against the release that this container holds.

It knows the job's folders; it starts nothing and refuses to know how a run goes.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from contracts.errors import ConfigError, Permanent
from trainers.inside.job import Job
from trainers.inside.nemo import data, release
from trainers.nemo_arithmetic import Cluster, check
from trainers.nemo_config import Counts, Places, render
from trainers.nemo_keys import refuse_unknown
from trainers.recipes import GRPORecipe

CHECKPOINTS, JOURNAL = "checkpoints", "rewards.jsonl"
"""Below the run's own folder: where the release saves, and what the reward environment notes."""


def prepare(job: Job, recipe: GRPORecipe, found: release.Release, work: Path) -> Path:
    """The configuration's path. Permanent where prompts, recipe, cluster and release do not fit; the message names the remedy."""
    cluster = Cluster(int(os.environ.get("RATCHET_NODES", "1")), job.gpus)
    counts = _data(job, recipe, cluster, work)
    check(recipe, cluster, counts.train)
    left = time_left(job, recipe)
    config = render(recipe, cluster, _places(job, found, work), counts, job.plan.seed, found.dialect, job.adjustment.memory, left)
    refuse_unknown(config, found.keys, f"the release at {found.root}")
    return release.write(config, work / "config.yaml")


def _data(job: Job, recipe: GRPORecipe, cluster: Cluster, work: Path) -> Counts:
    from rewards.panel import planned_panel

    rows = data.rows(job.run / "prompts.parquet", planned_panel(job.plan).without_reference())
    if not rows:
        raise Permanent("the training set holds no prompts; this plan should not have been made")
    check(recipe, cluster, len(rows))  # before the tokenizer is loaded
    _fits(job.run / "model", recipe)
    rows = data.short(rows, _lengths(job.run / "model"), recipe.nemo.max_prompt)
    return data.write(work / "data", *data.split(rows, recipe.nemo.validation_prompts, job.plan.seed))


def _fits(model: Path, recipe: GRPORecipe) -> None:
    """Prompt and answer must fit the model's context, where its configuration names one."""
    config = json.loads((model / "config.json").read_bytes())
    context = config.get("max_position_embeddings")
    wanted = recipe.nemo.max_prompt + recipe.max_completion
    if isinstance(context, int) and wanted > context:
        room = context - recipe.max_completion
        remedy = f"set nemo.max_prompt to {room} or less" if room > 0 else "lower max_completion and nemo.max_prompt"
        raise ConfigError(f"nemo.max_prompt + max_completion = {wanted} tokens exceed the model's context of {context}; {remedy}")


def _places(job: Job, found: release.Release, work: Path) -> Places:
    return Places(
        base=str(found.base),
        model=str(job.run / "model"),
        train=str(work / "data" / "train.jsonl"),
        validation=str(work / "data" / "validation.jsonl"),
        checkpoints=str(work / CHECKPOINTS),
        logs=str(work / "logs"),
        plan=str(job.run / "plan.json"),
        journal=str(work / JOURNAL),
    )


def time_left(job: Job, recipe: GRPORecipe) -> float | None:
    """Seconds until the release should save and end by itself: what is left of the attempt's time, less one grace."""
    whole = float(os.environ.get("RATCHET_TIMEOUT", "inf"))
    if whole == float("inf"):
        return None
    return max(1.0, job.began + whole - time.time() - recipe.grace_seconds)


def _lengths(model: Path) -> data.Length:
    """Tokens of a rendered prompt, by the start model's own tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)

    def length(messages: list[dict[str, object]]) -> int:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    return length
