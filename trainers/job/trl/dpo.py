"""DPO trainer process: preference pairs, sampled in proportion to their weights, and rehearsed demonstrations.

The weight of a pair is 1 - 2 * P(order is wrong). The pairs are sampled in proportion to their weights, because the loss has no
weight per pair. The expected gradient is the same, and the SFT term is weighted in the same way.
A prompt that the model always answers correctly has no rejected answer and so no pair. Its demonstrations are part of the SFT
term, because the model could otherwise forget these answers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ratchet.contracts.errors import Permanent
from ratchet.runtime.jobs.job_protocol import RunFile
from ratchet.trainers.job import parallel
from ratchet.trainers.job.job_folder import Job
from ratchet.trainers.job.trl.conversations import OMITTED, Example, control_words, encode, imitable, read, read_shown, shows_tools
from ratchet.trainers.job.trl.micro_batches import PairSize
from ratchet.trainers.job.trl.runner import CONTROL, leave_out, lora, main, tell_left_out
from ratchet.trainers.recipes.dpo import DPORecipe

if TYPE_CHECKING:
    from ratchet.trainers.job.trl.dpo_trainer import Rehearsal


def build(job: Job, shared: dict[str, Any]) -> Any:
    """Return the DPO trainer (`Stepwise`), ready to train.

    `shared` holds the arguments that all methods share. The whole run is one epoch, so that a resumed run has the same order of
    rows. Raises Permanent if no pair can be trained on.
    """
    from transformers import AutoTokenizer

    from ratchet.trainers.job.trl.dpo_trainer import Stepwise, configuration, placeholder
    from ratchet.trainers.job.trl.reference_logps import Reference
    from ratchet.trainers.job.trl.start_model import policy

    recipe = job.recipe(DPORecipe)
    examples = read(job.run / RunFile.PAIRS, recipe.weigh_pairs)
    if not examples:
        raise Permanent("the training set has no pairs, so the plan is not valid; plan again")
    tokenizer = AutoTokenizer.from_pretrained(job.run / RunFile.MODEL, trust_remote_code=False)
    kept, left = encoded(tokenizer, examples, recipe)
    leave_out(job, "pairs", len(examples), left)
    return Stepwise(
        recipe,
        pairs=[pair for _, pair in kept],
        weights=[example.weight for example, _ in kept],
        references=Reference(job, recipe),
        report=lambda shares: _tell_shares(job, shares),
        rehearsal=rehearsal(job, tokenizer, recipe, {_prompt(example) for example, _ in kept if example.weight > 0}),
        model=policy(job.run / RunFile.MODEL, shared),
        args=configuration(recipe, shared),
        train_dataset=placeholder(),
        processing_class=tokenizer,
        peft_config=lora(recipe),
    )


def _tell_shares(job: Job, shares: bool) -> None:
    """Report whether a pair shares its prompt. Otherwise each prompt is computed twice, which is up to 2.4 times slower."""
    if parallel.rank() == 0:
        job.events.write("layout", shares_prompts=shares)


def encoded(tokenizer: Any, examples: Sequence[Example], recipe: DPORecipe) -> tuple[list[tuple[Example, PairSize]], dict[str, int]]:
    """Tokenize the usable examples.

    Returns the examples with their tokens, and the number of excluded examples by reason: special tokens in an answer, or a prompt
    longer than max_length.
    """
    control = control_words(tokenizer)
    plain = [example for example in examples if all(imitable(answer, control) for answer in example.answers)]
    tools = shows_tools(tokenizer)
    whole = [example for example in plain if tools or not example.needs_tools]
    kept = encode(tokenizer, whole, recipe.max_length)
    long = f"with prompts longer than max_length = {recipe.max_length} tokens"
    left = {CONTROL: len(examples) - len(plain), OMITTED: len(plain) - len(whole), long: len(whole) - len(kept)}
    return [(whole[number], pair) for number, pair in kept], left


def rehearsal(job: Job, tokenizer: Any, recipe: DPORecipe, paired: set[str]) -> Rehearsal:
    """Return the demonstrations of prompts that are not in `paired`, with their weights and the mean number per step.

    The number is limited so that such a prompt is not sampled more often than a prompt with pairs.
    """
    from ratchet.trainers.job.trl.dpo_trainer import NOTHING, Rehearsal

    if not recipe.rehearsed:
        return NOTHING
    shown = [example for example in read_shown(job.run / RunFile.DEMONSTRATIONS) if example.weight > 0 and _prompt(example) not in paired]
    rendered = [example for example in shown if _is_rendered(tokenizer, example, recipe)]
    kept, left = encoded(tokenizer, rendered, recipe)
    left["that the chat template cannot render"] = len(shown) - len(rendered)
    tell_left_out(job, "demonstrations of prompts without a pair", len(shown), left)
    prompts = Counter(_prompt(example) for example, _ in kept)
    rows = min(recipe.rehearsed, recipe.batch * len(prompts) / max(1, len(paired)))
    weights = [example.weight / prompts[_prompt(example)] for example, _ in kept]  # equal per prompt
    return Rehearsal([pair for _, pair in kept], weights, rows)


def _is_rendered(tokenizer: Any, example: Example, recipe: DPORecipe) -> bool:
    """Whether the chat template accepts the example. Demonstrations are optional, so an error must not end the run."""
    try:
        encode(tokenizer, [example], recipe.max_length)
    except Permanent:
        return False
    return True


def _prompt(example: Example) -> str:
    """The prompt with its tools as canonical JSON, for comparison."""
    return json.dumps([example.prompt, example.tools], sort_keys=True)


if __name__ == "__main__":
    main(build, DPORecipe)
