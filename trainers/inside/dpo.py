"""The DPO trainer process: preference pairs as conversations, drawn in proportion to their weights, and what it rehearses beside them.

A pair's weight is 1 - 2 * probability that its order is wrong. The library's loss takes no weight per pair, so a pair is
drawn as often as its weight says: in expectation the same gradient, and the SFT share follows suit. Where the model was
always right nothing was rejected, so there is no pair; such prompts' demonstrations join the SFT share, or they would be forgotten.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from contracts.errors import Permanent
from trainers.inside.batches import Pair
from trainers.inside.conversations import Example, control_words, encode, imitable, read, read_shown
from trainers.inside.job import Job
from trainers.inside.training import CONTROL, leave_out, lora, main, tell_left_out
from trainers.recipes import DPORecipe

if TYPE_CHECKING:
    from trainers.inside.stepwise import Rehearsal


def build(job: Job, shared: dict[str, Any]) -> Any:
    """The library's trainer, step by step (`Stepwise`). The whole run is one epoch, so that resume meets the same order."""
    from transformers import AutoTokenizer

    from trainers.inside.reference import Reference
    from trainers.inside.stepwise import Stepwise, configuration, placeholder

    recipe = job.recipe(DPORecipe)
    examples = read(job.run / "pairs.parquet", recipe.weigh_pairs)
    if not examples:
        raise Permanent("the training set holds no pairs; this plan should not have been made")
    tokenizer = AutoTokenizer.from_pretrained(job.run / "model")
    kept, left = encoded(tokenizer, examples, recipe)
    leave_out(job, "pairs", len(examples), left)
    return Stepwise(
        recipe,
        pairs=[pair for _, pair in kept],
        weights=[example.weight for example, _ in kept],
        references=Reference(job, recipe),
        rehearsal=rehearsal(job, tokenizer, recipe, {_prompt(example) for example, _ in kept if example.weight > 0}),
        model=str(job.run / "model"),
        args=configuration(recipe, shared),
        train_dataset=placeholder(),
        processing_class=tokenizer,
        peft_config=lora(recipe),
    )


def encoded(tokenizer: Any, examples: Sequence[Example], recipe: DPORecipe) -> tuple[list[tuple[Example, Pair]], dict[str, int]]:
    """Those that can be trained on, with their tokens; and how many cannot, by why."""
    control = control_words(tokenizer)
    plain = [example for example in examples if all(imitable(answer, control) for answer in example.answers)]
    kept = encode(tokenizer, plain, recipe.max_length)
    long = f"with prompts longer than max_length = {recipe.max_length} tokens"
    return [(plain[number], pair) for number, pair in kept], {CONTROL: len(examples) - len(plain), long: len(plain) - len(kept)}


def rehearsal(job: Job, tokenizer: Any, recipe: DPORecipe, paired: set[str]) -> Rehearsal:
    """Demonstrations of prompts that are not `paired`, and how many a step takes: such a prompt is met no oftener than one with pairs."""
    from trainers.inside.stepwise import NOTHING, Rehearsal

    if not recipe.rehearsed:
        return NOTHING
    shown = [example for example in read_shown(job.run / "demonstrations.parquet") if example.weight > 0 and _prompt(example) not in paired]
    rendered = [example for example in shown if _is_rendered(tokenizer, example, recipe)]
    kept, left = encoded(tokenizer, rendered, recipe)
    left["that the chat template cannot render"] = len(shown) - len(rendered)
    tell_left_out(job, "demonstrations of prompts without a pair", len(shown), left)
    prompts = Counter(_prompt(example) for example, _ in kept)
    rows = min(recipe.rehearsed, recipe.batch * len(prompts) / max(1, len(paired)))
    weights = [example.weight / prompts[_prompt(example)] for example, _ in kept]  # by prompt, however many answers it has
    return Rehearsal([pair for _, pair in kept], weights, rows)


def _is_rendered(tokenizer: Any, example: Example, recipe: DPORecipe) -> bool:
    """A run can do without any demonstration, so one that a template refuses must not end it."""
    try:
        encode(tokenizer, [example], recipe.max_length)
    except Permanent:
        return False
    return True


def _prompt(example: Example) -> str:
    """To compare."""
    return json.dumps(example.prompt, sort_keys=True)


if __name__ == "__main__":
    main(build, DPORecipe)
