"""The DPO trainer process: preference pairs as conversations, drawn in proportion to their weights.

A pair's weight is 1 - 2 * probability that its order is wrong. The library's loss takes no weight per pair, so a pair is
drawn as often as its weight says: in expectation the same gradient, and the SFT share follows suit.
"""

from __future__ import annotations

import json
from typing import Any

from contracts.errors import Permanent
from trainers.inside.drawing import drawn
from trainers.inside.job import Job
from trainers.inside.training import lora, main
from trainers.recipes import DPORecipe


def rows(job: Job, weigh: bool) -> list[dict[str, Any]]:
    """Pairs as conversations, with their weights."""
    import pyarrow.parquet as pq

    table = pq.read_table(job.run / "pairs.parquet", columns=["prompt", "chosen", "rejected", "weight"])
    return [
        {
            "prompt": json.loads(row["prompt"]),
            "chosen": [{"role": "assistant", "content": row["chosen"]}],
            "rejected": [{"role": "assistant", "content": row["rejected"]}],
            "weight": float(row["weight"]) if weigh else 1.0,
        }
        for row in table.to_pylist()
    ]


def build(job: Job, shared: dict[str, Any]) -> Any:
    """TRL's DPOTrainer, its sampler replaced by ours: the whole run is one epoch, so that resume meets the same order."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    recipe = job.recipe(DPORecipe)
    pairs = rows(job, recipe.weigh_pairs)
    if not pairs:
        raise Permanent("the training set holds no pairs; this plan should not have been made")

    class Weighted(DPOTrainer):
        def _get_train_sampler(self, _dataset: Any = None) -> Any:
            weights = self.train_dataset["weight"]  # after the library has dropped pairs that are too long
            return drawn(weights, recipe.steps * recipe.batch, job.plan.seed)

    terms = {loss: weight for loss, weight in recipe.losses.items() if weight > 0}
    config = DPOConfig(
        **shared,
        gradient_accumulation_steps=recipe.batch // recipe.micro_batch,
        loss_type=list(terms),
        loss_weights=list(terms.values()),
        beta=recipe.beta,
        label_smoothing=recipe.label_smoothing,
        max_length=recipe.max_length,
    )
    trainer = Weighted(
        model=str(job.run / "model"),
        args=config,
        train_dataset=Dataset.from_list(pairs),
        processing_class=AutoTokenizer.from_pretrained(job.run / "model"),
        peft_config=lora(recipe),
    )
    if len(trainer.train_dataset) == 0:
        raise Permanent(f"every pair's prompt is longer than max_length = {recipe.max_length} tokens; raise it")
    return trainer


if __name__ == "__main__":
    main(build, DPORecipe)
