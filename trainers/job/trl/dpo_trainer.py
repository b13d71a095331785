"""DPO trainer: a subclass of the library's trainer that processes one complete optimiser step per batch.

The library's trainer takes micro-batches with a fixed number of pairs, pads each to its longest pair, runs the start model at every
step, and averages the means of micro-batches. This trainer differs as follows:

* The pairs of a step are split so that there is little padding, and each prompt is computed once.
* Only the positions that predict answer tokens go through the output layer.
* The log-probabilities of the start model are computed before the first step.
* The gradient is that of the mean over the step, for every split.
* A step can also rehearse demonstrations, which count only in the SFT term.

A mixture-of-experts model is trained without its load-balancing loss, because that loss depends on the split into micro-batches.
The module reads no files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader
from trl import DPOConfig, DPOTrainer
from trl.trainer.utils import add_fused_lm_head

from ratchet.trainers.job.parallel import agreed
from ratchet.trainers.job.trl import losses
from ratchet.trainers.job.trl.collate import Layout, lay_out
from ratchet.trainers.job.trl.micro_batches import Groups, PairSize, in_order, plan_micro_batches
from ratchet.trainers.job.trl.private_methods import replaces_private_methods
from ratchet.trainers.job.trl.sampler import drawn
from ratchet.trainers.job.trl.start_model import computes_shared_rows_exactly, no_reference, start_model, without_adapter
from ratchet.trainers.recipes.dpo import DPORecipe


class Optimizations(NamedTuple):
    """Optimisations of a step that a benchmark can switch off one by one. By default, all are active."""

    known_reference: bool = True
    """Computes the log-probabilities of the start model once, before the first step."""
    by_length: bool = True
    """Forms micro-batches of similar lengths with a token budget. false: a fixed number of pairs in the sampled order."""
    answers_only: bool = True
    """Applies the output layer only at positions that predict a scored token. (On a GPU, the library does this itself.)"""
    shared_prompt: bool = True
    """Uses one row for both answers if the model computes it exactly. Requires `answers_only`."""


ALL = Optimizations()


def configuration(recipe: DPORecipe, shared: Mapping[str, Any], optimizations: Optimizations = ALL) -> DPOConfig:
    """Return the configuration of the library, in which one batch is one step. `shared` holds the arguments of all methods."""
    return DPOConfig(
        **{**shared, "per_device_train_batch_size": recipe.batch},
        gradient_accumulation_steps=1,
        loss_type=[name for name, weight in recipe.losses.items() if weight > 0],
        loss_weights=[weight for weight in recipe.losses.values() if weight > 0],
        beta=recipe.beta,
        label_smoothing=recipe.smoothing,
        max_length=recipe.max_length,
        router_aux_loss_coef=0.0,
        precompute_ref_log_probs=optimizations.known_reference and not shared.get("fsdp"),  # it would hash weights that only rank 0 has
    )


def placeholder() -> Dataset:
    """Return a dummy dataset, because the library requires one. `Stepwise` holds the pairs itself."""
    return Dataset.from_dict({"prompt": [""]})


References = Callable[["Stepwise"], torch.Tensor]
"""Returns the log-probabilities of all pairs under the start model, float32 [pairs, 2] in nats. Called once, before the first step."""


class Rehearsal(NamedTuple):
    """Demonstrations that a run trains on in addition to its pairs."""

    shown: list[PairSize]
    """The demonstrations; they have no rejected answers."""
    weights: list[float]
    """Sampling weight of each demonstration."""
    rows: float
    """Mean number of demonstrations per step."""


NOTHING = Rehearsal([], [], 0)
"""No rehearsal."""


@replaces_private_methods
class Stepwise(DPOTrainer):
    """DPO trainer on `pairs`, sampled by `weights`, with the losses of `recipe` (arXiv:2305.18290).

    Row numbers refer to the pairs first and then to the demonstrations. `references` provides the log-probabilities of the start
    model. `report` is told once whether both answers of a pair share the computation of their prompt. The other arguments are those of the
    library's trainer.
    """

    def __init__(
        self, recipe: DPORecipe, pairs: list[PairSize], weights: list[float], references: References, optimizations: Optimizations = ALL,
        rehearsal: Rehearsal = NOTHING, report: Callable[[bool], object] = bool, **given: Any,
    ) -> None:  # fmt: skip
        self.recipe = recipe
        self.pairs = pairs
        self.weights = weights
        self.rehearsal = rehearsal
        self.rows = [*pairs, *rehearsal.shown]
        self.optimizations = optimizations
        self.terms = {name: weight for name, weight in recipe.losses.items() if weight > 0}
        self.knobs = losses.Knobs(recipe.beta, recipe.smoothing)
        self.shares = False
        self._references = references
        self._report = report
        self._known: torch.Tensor | None = None
        self._picked: torch.Tensor | None = None
        self._figures: dict[str, float] = {}
        self._ready = False
        sharded = bool(given["args"].fsdp)
        if sharded and given.get("peft_config") is None:
            given["ref_model"] = no_reference(given["model"])
        super().__init__(**given)
        if sharded:
            self.ref_model = None
        for model in filter(None, (self.model, self.ref_model)):
            without_adapter(self.accelerator.unwrap_model(model)).base_model.register_forward_hook(self._keep_picked)
        if not sharded:
            self._get_ready()
        add_fused_lm_head(without_adapter(self.model))  # computes only log-probabilities, without entropies or means over the vocabulary

    def order(self) -> list[int]:
        """Return the indices of the sampled pairs of the whole run, in order: `steps * batch` of them."""
        return list(drawn(self.weights, self.recipe.last_step * self.recipe.batch, self.args.seed))

    @property
    def _most(self) -> int:
        """Maximum number of demonstrations per step."""
        return math.ceil(self.rehearsal.rows)

    @property
    def _gap(self) -> int:
        """Row number that stands for no row. It fills up steps with fewer demonstrations, because all batches must have the same size."""
        return len(self.rows)

    def rows_in_order(self) -> list[int]:
        """Return the row numbers of the whole run, in order. Each step has its pairs, then its demonstrations, then gaps."""
        order, batch, steps = self.order(), self.recipe.batch, self.recipe.last_step
        total = round(steps * self.rehearsal.rows)
        shown = [len(self.pairs) + i for i in drawn(self.rehearsal.weights, total, self.args.seed)] if total else []
        rows: list[int] = []
        for step in range(steps):
            rehearsed = shown[step * total // steps : (step + 1) * total // steps]
            rows += [*order[step * batch : (step + 1) * batch], *rehearsed, *[self._gap] * (self._most - len(rehearsed))]
        return rows

    # Overrides of the library's trainer

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset  # the pairs are already tokenized

    def _precompute_ref_logps(self, dataset: Any, *_: Any) -> Any:
        return dataset  # `_get_ready` computes them

    def _prepare_for_training(self, *given: Any, **named: Any) -> Any:
        prepared = super()._prepare_for_training(*given, **named)
        self._get_ready()  # the policy of a sharded run is the start model until its first step
        return prepared

    def _load_from_checkpoint(self, *given: Any, **named: Any) -> None:
        self._get_ready()  # a sharded run that resumes: the policy is the start model until its checkpoint is loaded
        super()._load_from_checkpoint(*given, **named)

    def get_train_dataloader(self) -> Any:
        """Return a data loader whose batches are complete steps. Every rank gets the whole step and processes its part of the plan."""
        size = self.recipe.batch + self._most
        return DataLoader(range(len(self.rows) + 1), batch_size=size, sampler=self.rows_in_order(), collate_fn=self._without_gaps)

    def _without_gaps(self, numbers: list[int]) -> dict[str, list[int]]:
        return {"rows": [number for number in numbers if number != self._gap]}

    def training_step(self, model: Any, inputs: Any, *_: Any) -> torch.Tensor:
        """Accumulate the gradients of the mean loss of the step, and return this loss as a float32 scalar tensor.

        `inputs["rows"]` holds the row numbers of the step.
        """
        model.train()
        numbers: list[int] = inputs["rows"]
        rows = [self.rows[number] for number in numbers]
        pairs = sum(number < len(self.pairs) for number in numbers)
        tokens = sum(len(row.chosen) - (not row.prompt) for row in rows)
        total = torch.zeros((), device=self.accelerator.device)
        seen: list[torch.Tensor] = []
        groups = self.groups(rows)
        for turn, group in enumerate(groups):
            idle = not group
            chosen = group or [min(range(len(rows)), key=lambda i: rows[i].length(self.shares))]
            with self._quiet(model, last=turn == len(groups) - 1), self.compute_loss_context_manager():
                scores = self._scores(model, [numbers[i] for i in chosen])
                part = losses.part(self.terms, scores, self.knobs, pairs, tokens)
                part = part * 0.0 if idle else part
                self.accelerator.backward(part * self.args.world_size)  # the library averages over ranks; parts are summed
            if not idle:
                total += part.detach()
                seen.append(losses.step_sums(scores))
        sums = torch.stack(seen).sum(0) if seen else torch.zeros(losses.STEP_SUMS, device=total.device)
        return self._whole(total, sums, pairs, len(rows) - pairs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the figures of the step in addition to those of the library."""
        super().log({**logs, **(self._figures if "loss" in logs else {})}, start_time)

    # Computation of a step

    def groups(self, rows: Sequence[PairSize]) -> Groups:
        """Return the micro-batches of this rank as lists of indices into `rows`.

        In the separate layout, a demonstration counts as two rows in the plan, like a pair.
        """
        if not self.optimizations.by_length:
            return in_order(len(rows), self.recipe.micro_batch)[0]
        plans = plan_micro_batches(
            [row.length(self.shares) for row in rows], self.recipe.budget, 1 if self.shares else 2, self.args.world_size
        )
        return plans[self.args.process_index]

    def _quiet(self, model: Any, last: bool) -> AbstractContextManager[Any]:
        """Context without gradient synchronisation, except for the last micro-batch. With FSDP2, always synchronise, to save memory."""
        return nullcontext() if last or self.is_fsdp_enabled else self.accelerator.no_sync(model)

    def _scores(self, model: Any, numbers: list[int]) -> losses.Scores:
        numbers = sorted(numbers, key=lambda number: number >= len(self.pairs))  # pairs first, otherwise in the same order
        layout = self.layout([self.rows[number] for number in numbers], self.shares)
        sums = self.answers(model, layout)
        n = sum(number < len(self.pairs) for number in numbers)
        pairs, shown = sums[:n], sums[n:, 0]
        if not losses.needs_reference(self.terms):
            reference = torch.zeros_like(pairs)
        elif self._known is not None:
            reference = self._known[numbers[:n]].to(sums.device)
        else:
            with self.start_model() as start:
                reference = self.answers(start, layout)[:n]
        return losses.Scores(pairs[:, 0], pairs[:, 1], reference[:, 0], reference[:, 1], layout.lengths[:n], shown)

    def layout(self, pairs: Sequence[PairSize], shared: bool) -> Layout:
        """Return the tensors of the pairs on the device of this rank. `shared` selects the shared layout."""
        return lay_out(pairs, self.processing_class.pad_token_id or 0, shared, self.accelerator.device)

    def answers(self, model: Any, layout: Layout) -> torch.Tensor:
        """Return the log-probabilities of the answers, float32 of shape [pairs, 2] (chosen, rejected), in nats."""
        given = {"input_ids": layout.ids, "attention_mask": layout.mask, "position_ids": layout.positions, "fused_lm_head": True}
        if self.optimizations.answers_only:
            self._picked = layout.sources
            scored = model(**given, shift_labels=layout.targets[None]).log_probs[0]
        else:
            labels = torch.full_like(layout.ids, -100).flatten().index_put((layout.sources,), layout.targets)
            scored = model(**given, shift_labels=labels.view_as(layout.ids)).log_probs.flatten()[layout.sources]
        sums = [part.sum() for part in scored.split(layout.counts)]  # deterministic order of summation, unlike an indexed sum on a GPU
        return torch.stack(sums).view(-1, 2)

    def _keep_picked(self, _model: Any, _given: Any, output: Any) -> Any:
        if self._picked is not None:
            hidden = output.last_hidden_state
            output.last_hidden_state = hidden.flatten(0, 1)[self._picked][None]
            self._picked = None
        return output

    def _whole(self, loss: torch.Tensor, sums: torch.Tensor, pairs: int, shown: int) -> torch.Tensor:
        """Reduce loss and figures over all ranks, store the figures, and return the loss of the step.

        `sums` has shape [STEP_SUMS], `pairs` and `shown` are the numbers of pairs and demonstrations in the step. Every rank returns
        the same loss, so the library's mean over ranks is the loss of the step.
        """
        both = torch.cat([loss[None], sums])
        if self.args.world_size > 1:
            torch.distributed.all_reduce(both)
        self._figures = losses.step_figures(self.terms, both[1:].tolist(), self.recipe.beta, pairs, shown)
        if self.rehearsal.rows:
            self._figures["rehearsal/rows"] = shown
        return both[0]

    # Start-up

    def _get_ready(self) -> None:
        """Determine once whether prompts can be shared, and load the log-probabilities of the start model.

        A sharded run calls this after its policy is sharded and before its weights change; then no second copy of the model is needed.
        """
        if self._ready:
            return
        self._ready = True
        if self.optimizations.answers_only and self.optimizations.shared_prompt:
            with self.start_model() as start:
                self.shares = not agreed(self, not computes_shared_rows_exactly(self, start))
            self._report(self.shares)
        if self.optimizations.known_reference and losses.needs_reference(self.terms):
            self._known = self._references(self)
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # some layers stay gathered after a forward pass, and a checkpoint is loaded into shards

    def start_model(self) -> AbstractContextManager[Any]:
        """Return a context manager that provides the start model without gradients."""
        return start_model(self)
