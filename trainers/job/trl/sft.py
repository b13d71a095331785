"""SFT trainer process: trains on correct answers as conversations, with the loss on the answer only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.training import LeftOut
from ratchet.runtime.chat_template import template_messages
from ratchet.runtime.jobs.job_protocol import RunFile
from ratchet.trainers.job import parallel
from ratchet.trainers.job.job_folder import Job
from ratchet.trainers.job.left_out import leave_out
from ratchet.trainers.job.model_fit import row_limit
from ratchet.trainers.job.start_tokenizer import load_tokenizer
from ratchet.trainers.job.trl.conversations import Example, answer_text, assistant_message, demonstrations, messages, tools_of
from ratchet.trainers.job.trl.fitting import fit
from ratchet.trainers.job.trl.micro_batches import PairSize
from ratchet.trainers.job.trl.private_methods import replaces_private_methods
from ratchet.trainers.job.trl.runner import lora, main
from ratchet.trainers.job.trl.sampler import drawn, weight
from ratchet.trainers.recipes.sft import SFTRecipe


def rows(run: Path, recipe: SFTRecipe, weights: Mapping[int, float | None] | None = None) -> list[dict[str, Any]]:
    """Return prompts and completions of a run folder as conversations with their tools and weights.

    `weights` has other weights than those of the file, by the number of the row. The weight None leaves a row out.
    Raises Permanent for an invalid row, or without a row.
    """
    found = demonstrations(run / RunFile.DEMONSTRATIONS)
    if not found:
        raise Permanent("the training set has no demonstrations, so the plan is not valid; plan again")
    other = weights or {}
    weighed = [(number, row | {"weight": other.get(number, row["weight"])}) for number, row in enumerate(found)]
    return [_row(row, f"demonstration {number}", recipe) for number, row in weighed if other.get(number, 0.0) is not None]


def _row(row: Mapping[str, Any], name: str, recipe: SFTRecipe) -> dict[str, Any]:
    return {
        "prompt": messages(row["prompt"], name),
        "completion": [assistant_message(answer_text(row["answer"], name, "answer"))],
        "tools": tools_of(row, name),
        "weight": weight(row["weight"], name) if recipe.weigh else 1.0,
    }


def _example(row: Mapping[str, Any]) -> Example:
    return Example(template_messages(row["prompt"]), row["completion"][0], None, row["tools"], row["weight"])


def dataset_of(tokenizer: Any, rows: Sequence[Mapping[str, Any]], max_length: int) -> tuple[list[dict[str, Any]], LeftOut]:
    """Return the rows that can be trained on, as tokens with a mask of the answer, and the counts of the others.

    The library would cut long answers and drop long prompts without a word, and would give all tool calls of a table the same keys of
    arguments, filled with nulls.
    """
    kept, left = fitting(tokenizer, rows, max_length)
    tokens = [
        {
            "input_ids": [*pair.prompt, *pair.chosen],
            "completion_mask": [0] * len(pair.prompt) + [1] * len(pair.chosen),
            "weight": weight,
        }
        for pair, weight in kept
    ]
    return tokens, left


def fitting(tokenizer: Any, rows: Sequence[Mapping[str, Any]], max_length: int) -> tuple[list[tuple[PairSize, float]], LeftOut]:
    """Return the tokens of prompt and answer, and the weight, of each row that can be trained on, and the counts of the others."""
    examples = [_example(row) for row in rows]
    kept, left = fit(tokenizer, examples, max_length)
    return [(pair, examples[number].weight) for number, pair in kept], LeftOut(what="answers", rows=len(rows), reasons=left)


def left_out(run: Path, tokenizer: Any, recipe: SFTRecipe) -> list[LeftOut]:
    """Return the counts of the rows in a run folder that the job leaves out. Raises as `rows`."""
    return [dataset_of(tokenizer, rows(run, recipe), row_limit(run / RunFile.MODEL, recipe.max_length))[1]]


def rows_per_process(recipe: SFTRecipe, processes: int) -> int:
    """Return the rows that each process has in memory: at most micro_batch, so that all processes together take whole steps.

    Raises Permanent if the batch cannot be divided.
    """
    share, rest = divmod(recipe.batch, processes)
    if rest:
        raise Permanent(f"batch {recipe.batch} is not a multiple of the {processes} processes; set batch to a multiple")
    return next(n for n in range(min(recipe.micro_batch, share), 0, -1) if share % n == 0)


def build(job: Job, shared: dict[str, Any]) -> Any:
    """Return TRL's SFTTrainer with a weighted sampler, ready to train.

    The whole run is one epoch, so that a resumed run has the same order of rows. Raises Permanent if no row can be trained on.
    """
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from ratchet.trainers.job.trl.start_model import policy

    recipe = job.recipe(SFTRecipe)
    answers = rows(job.run, recipe, job.row_weights)
    tokenizer = load_tokenizer(job.run / RunFile.MODEL)
    usable, left = dataset_of(tokenizer, answers, row_limit(job.run / RunFile.MODEL, recipe.max_length))
    leave_out(job, left)

    @replaces_private_methods
    class Weighted(SFTTrainer):
        def _get_train_sampler(self, _dataset: Any = None) -> Any:
            return drawn(self.train_dataset["weight"], recipe.last_step * recipe.batch, job.plan.seed)

    shared = {**shared, "per_device_train_batch_size": rows_per_process(recipe, parallel.world())}
    config = SFTConfig(
        **shared,
        gradient_accumulation_steps=recipe.batch // (shared["per_device_train_batch_size"] * parallel.world()),
        max_length=recipe.max_length,
        completion_only_loss=True,
        packing=False,
    )
    return Weighted(
        model=policy(job.run / RunFile.MODEL, shared),
        args=config,
        train_dataset=Dataset.from_list(usable),
        processing_class=tokenizer,
        peft_config=lora(recipe),
    )


if __name__ == "__main__":
    main(build, SFTRecipe)
