"""DPO trainer process: preference pairs, sampled in proportion to their weights, and rehearsed demonstrations.

The weight of a pair is 1 - 2 * P(order is wrong). The pairs are sampled in proportion to their weights, because the loss has no
weight per pair. The expected gradient is the same, and the SFT term is weighted in the same way.
A prompt that the model always answers correctly has no rejected answer and so no pair. Its demonstrations are part of the SFT
term, because the model could otherwise forget these answers.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.training import LeftOut
from ratchet.runtime.jobs.job_protocol import RunFile
from ratchet.trainers.job import parallel
from ratchet.trainers.job.job_folder import Job
from ratchet.trainers.job.left_out import leave_out, tell_left_out
from ratchet.trainers.job.model_fit import row_limit
from ratchet.trainers.job.start_tokenizer import load_tokenizer
from ratchet.trainers.job.trl.conversations import Example, read, read_shown
from ratchet.trainers.job.trl.fitting import fit
from ratchet.trainers.job.trl.micro_batches import PairSize
from ratchet.trainers.job.trl.runner import lora, main
from ratchet.trainers.recipes.dpo import DPORecipe

if TYPE_CHECKING:
    from ratchet.trainers.job.trl.dpo_trainer import Rehearsal


def build(job: Job, shared: dict[str, Any]) -> Any:
    """Return the DPO trainer (`Stepwise`), ready to train.

    `shared` holds the arguments that all methods share. The whole run is one epoch, so that a resumed run has the same order of
    rows. Raises Permanent if no pair can be trained on.
    """
    from ratchet.trainers.job.trl.dpo_trainer import Stepwise, configuration, placeholder
    from ratchet.trainers.job.trl.reference_logps import Reference
    from ratchet.trainers.job.trl.start_model import policy

    recipe = job.recipe(DPORecipe)
    tokenizer = load_tokenizer(job.run / RunFile.MODEL)
    kept, left = pairs(job.run, tokenizer, recipe)
    leave_out(job, left)
    return Stepwise(
        recipe,
        pairs=[pair for _, pair in kept],
        weights=[example.weight for example, _ in kept],
        references=Reference(job, recipe),
        report=lambda shares: _tell_shares(job, shares),
        rehearsal=rehearsal(job, tokenizer, recipe, _paired(kept)),
        model=policy(job.run / RunFile.MODEL, shared),
        args=configuration(recipe, shared),
        train_dataset=placeholder(),
        processing_class=tokenizer,
        peft_config=lora(recipe),
    )


Kept = list[tuple[Example, PairSize]]
"""Examples that can be trained on, with their tokens."""


def pairs(run: Path, tokenizer: Any, recipe: DPORecipe) -> tuple[Kept, LeftOut]:
    """Return the pairs of a run folder that can be trained on, and the counts of the others. Raises Permanent without a pair."""
    examples = read(run / RunFile.PAIRS, recipe.weigh_pairs)
    if not examples:
        raise Permanent("the training set has no pairs, so the plan is not valid; plan again")
    return _fitting(run, tokenizer, examples, recipe, "pairs")


def shown(run: Path, tokenizer: Any, recipe: DPORecipe, paired: set[str]) -> tuple[Kept, LeftOut]:
    """Return the demonstrations of prompts that are not in `paired` and can be trained on, and the counts of the others."""
    examples = [example for example in read_shown(run / RunFile.DEMONSTRATIONS) if example.weight > 0 and _prompt(example) not in paired]
    return _fitting(run, tokenizer, examples, recipe, "demonstrations of prompts without a pair")


def _fitting(run: Path, tokenizer: Any, examples: list[Example], recipe: DPORecipe, what: str) -> tuple[Kept, LeftOut]:
    fitting, left = fit(tokenizer, examples, row_limit(run / RunFile.MODEL, recipe.max_length))
    return [(examples[number], pair) for number, pair in fitting], LeftOut(what=what, rows=len(examples), reasons=left)


def left_out(run: Path, tokenizer: Any, recipe: DPORecipe) -> list[LeftOut]:
    """Return the counts of the rows in a run folder that the job leaves out: pairs, and rehearsed demonstrations. Raises as `pairs`."""
    kept, left = pairs(run, tokenizer, recipe)
    return [left, shown(run, tokenizer, recipe, _paired(kept))[1]] if recipe.rehearsed else [left]


def _paired(kept: Kept) -> set[str]:
    return {_prompt(example) for example, _ in kept if example.weight > 0}


def _tell_shares(job: Job, shares: bool) -> None:
    """Report whether a pair shares its prompt. Otherwise each prompt is computed twice, which is up to 2.4 times slower."""
    if parallel.rank() == 0:
        job.events.write("layout", shares_prompts=shares)


def rehearsal(job: Job, tokenizer: Any, recipe: DPORecipe, paired: set[str]) -> Rehearsal:
    """Return the demonstrations of prompts that are not in `paired`, with their weights and the mean number per step.

    The number is limited so that such a prompt is not sampled more often than a prompt with pairs.
    """
    from ratchet.trainers.job.trl.dpo_trainer import NOTHING, Rehearsal

    if not recipe.rehearsed:
        return NOTHING
    kept, left = shown(job.run, tokenizer, recipe, paired)
    tell_left_out(job, left)
    prompts = Counter(_prompt(example) for example, _ in kept)
    rows = min(recipe.rehearsed, recipe.batch * len(prompts) / max(1, len(paired)))
    weights = [example.weight / prompts[_prompt(example)] for example, _ in kept]  # equal per prompt
    return Rehearsal([pair for _, pair in kept], weights, rows)


def _prompt(example: Example) -> str:
    """The prompt with its tools as canonical JSON, for comparison."""
    return json.dumps([example.prompt, example.tools], sort_keys=True)


if __name__ == "__main__":
    main(build, DPORecipe)
