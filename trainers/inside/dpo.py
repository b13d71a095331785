"""The DPO trainer process: preference pairs as conversations, drawn in proportion to their weights.

A pair's weight is 1 - 2 * probability that its order is wrong. The library's loss takes no weight per pair, so a pair is
drawn as often as its weight says: in expectation the same gradient, and the SFT share follows suit.
"""

from __future__ import annotations

from typing import Any

from contracts.errors import Permanent
from trainers.inside.conversations import control_words, encode, imitable, read
from trainers.inside.job import Job
from trainers.inside.training import CONTROL, leave_out, lora, main
from trainers.recipes import DPORecipe


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
    control = control_words(tokenizer)
    plain = [example for example in examples if imitable(example.chosen, control) and imitable(example.rejected, control)]
    kept = encode(tokenizer, plain, recipe.max_length)
    long = f"with prompts longer than max_length = {recipe.max_length} tokens"
    leave_out(job, "pairs", len(examples), {CONTROL: len(examples) - len(plain), long: len(plain) - len(kept)})
    return Stepwise(
        recipe,
        pairs=[pair for _, pair in kept],
        weights=[plain[number].weight for number, _ in kept],
        references=Reference(job, recipe),
        model=str(job.run / "model"),
        args=configuration(recipe, shared),
        train_dataset=placeholder(),
        processing_class=tokenizer,
        peft_config=lora(recipe),
    )


if __name__ == "__main__":
    main(build, DPORecipe)
