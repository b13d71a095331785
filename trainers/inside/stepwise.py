"""The library's DPO trainer, made to take one whole optimiser step at a time.

The plain trainer is given micro-batches of a fixed number of pairs, pads each to its longest, runs the start model beside the
trained one, and averages averages. Here a batch is a step: its pairs are laid out so that little is padding, their prompts
are computed once, only answer tokens meet the vocabulary, the start model's log-probabilities are known beforehand, and the
gradient is that of the step's mean, whatever the split. Beside its pairs a step may rehearse demonstrations, which count in the SFT
term alone. This module knows no files; it refuses to know where pairs and demonstrations come from.
A mixture of experts trains without its load-balancing loss: that is a property of a batch, and there is no batch here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from trl import DPOConfig, DPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import add_fused_lm_head, use_adapter

from trainers.inside import losses
from trainers.inside.batches import Groups, Pair, in_order, plan
from trainers.inside.drawing import drawn
from trainers.inside.layout import Layout, lay_out
from trainers.inside.parallel import agreed
from trainers.recipes import DPORecipe


class Levers(NamedTuple):
    """What makes it fast, each by itself, so that a benchmark can say what it is worth. All of them, unless one measures."""

    known_reference: bool = True
    """The start model's log-probabilities are computed once, beforehand."""
    by_length: bool = True
    """Micro-batches by tokens and of like length; else a fixed number of pairs in the drawn order."""
    answers_only: bool = True
    """Only positions that predict a scored token meet the vocabulary. (On a GPU the library does so by itself.)"""
    shared_prompt: bool = True
    """One row for both answers, where the model can do that exactly; needs `answers_only`."""


ALL = Levers()


def configuration(recipe: DPORecipe, shared: Mapping[str, Any], levers: Levers = ALL) -> DPOConfig:
    """The library's configuration: one batch is one step."""
    return DPOConfig(
        **{**shared, "per_device_train_batch_size": recipe.batch},
        gradient_accumulation_steps=1,
        loss_type=[name for name, weight in recipe.losses.items() if weight > 0],
        loss_weights=[weight for weight in recipe.losses.values() if weight > 0],
        beta=recipe.beta,
        label_smoothing=recipe.smoothing,
        max_length=recipe.max_length,
        router_aux_loss_coef=0.0,
        precompute_ref_log_probs=levers.known_reference,
    )


def placeholder() -> Dataset:
    """A data set for the library to hold: it wants one; the pairs are ours."""
    return Dataset.from_dict({"prompt": [""]})


References = Callable[["Stepwise"], torch.Tensor]
"""The start model's log-probabilities of all pairs' answers, [pairs, 2] in nats; called once, before the first step."""


class Rehearsal(NamedTuple):
    """Demonstrations that a run takes beside its pairs."""

    shown: list[Pair]
    """Without rejected answers."""
    weights: list[float]
    """By which they are drawn."""
    rows: float
    """Of a step, on average."""


NOTHING = Rehearsal([], [], 0)


class Stepwise(DPOTrainer):
    """Trains on `pairs`, drawn by `weights`, with the losses of `recipe`. A row's number is its pair's; demonstrations count on."""

    def __init__(
        self, recipe: DPORecipe, pairs: list[Pair], weights: list[float], references: References, levers: Levers = ALL,
        rehearsal: Rehearsal = NOTHING, **given: Any,
    ) -> None:  # fmt: skip
        self.recipe = recipe
        self.pairs = pairs
        self.weights = weights
        self.rehearsal = rehearsal
        self.rows = [*pairs, *rehearsal.shown]
        self.levers = levers
        self.terms = {name: weight for name, weight in recipe.losses.items() if weight > 0}
        self.knobs = losses.Knobs(recipe.beta, recipe.smoothing)
        self.shares = False
        self._references = references
        self._known: torch.Tensor | None = None
        self._picked: torch.Tensor | None = None
        self._figures: dict[str, float] = {}
        self._ready = False
        super().__init__(**given)
        self._get_ready()
        add_fused_lm_head(self._bare(self.model))  # log-probabilities alone: no entropies, no means over the vocabulary

    def order(self) -> list[int]:
        """Indices of the pairs that the whole run meets, in order."""
        return list(drawn(self.weights, self.recipe.steps * self.recipe.batch, self.args.seed))

    @property
    def _most(self) -> int:
        """Demonstrations of a step, at most."""
        return math.ceil(self.rehearsal.rows)

    @property
    def _gap(self) -> int:
        """Stands for a demonstration in a step that has one less: the library wants batches of one size."""
        return len(self.rows)

    def rows_in_order(self) -> list[int]:
        """Numbers of the rows that the whole run meets, in order: of each step its pairs, then its demonstrations, then gaps."""
        order, batch, steps = self.order(), self.recipe.batch, self.recipe.steps
        total = round(steps * self.rehearsal.rows)
        shown = [len(self.pairs) + i for i in drawn(self.rehearsal.weights, total, self.args.seed)] if total else []
        rows: list[int] = []
        for step in range(steps):
            rehearsed = shown[step * total // steps : (step + 1) * total // steps]
            rows += [*order[step * batch : (step + 1) * batch], *rehearsed, *[self._gap] * (self._most - len(rehearsed))]
        return rows

    # What the library asks for

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset  # the pairs are tokens already

    def _precompute_ref_logps(self, dataset: Any, *_: Any) -> Any:
        self._get_ready()  # while the library still holds the copy of the start model that a sharded run needs
        return dataset

    def get_train_dataloader(self) -> Any:
        """A batch is a step, and every rank sees all of it: each takes its part of a plan that all of them make."""
        size = self.recipe.batch + self._most
        return DataLoader(range(len(self.rows) + 1), batch_size=size, sampler=self.rows_in_order(), collate_fn=self._without_gaps)

    def _without_gaps(self, numbers: list[int]) -> dict[str, list[int]]:
        return {"rows": [number for number in numbers if number != self._gap]}

    def training_step(self, model: Any, inputs: Any, *_: Any) -> torch.Tensor:
        """Gradients of the step's mean loss, and that loss."""
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
                self.accelerator.backward(part * self.args.world_size)  # ranks' gradients are averaged, ours are parts of a sum
            if not idle:
                total += part.detach()
                seen.append(_sums(scores))
        sums = torch.stack(seen).sum(0) if seen else torch.zeros(SUMS, device=total.device)
        return self._whole(total, sums, pairs, len(rows) - pairs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The step's own figures beside the library's."""
        super().log({**logs, **(self._figures if "loss" in logs else {})}, start_time)

    # How it is done

    def groups(self, rows: Sequence[Pair]) -> Groups:
        """This rank's micro-batches of these rows. Where prompts are not shared, a demonstration is planned at the two rows of a pair."""
        if not self.levers.by_length:
            return in_order(len(rows), self.recipe.micro_batch)[0]
        plans = plan([row.length(self.shares) for row in rows], self.recipe.budget, 1 if self.shares else 2, self.args.world_size)
        return plans[self.args.process_index]

    def _quiet(self, model: Any, last: bool) -> AbstractContextManager[Any]:
        """Gradients of all but the last micro-batch stay on their rank; shards (FSDP2) are reduced at once, to save memory."""
        return nullcontext() if last or self.is_fsdp_enabled else self.accelerator.no_sync(model)

    def _scores(self, model: Any, numbers: list[int]) -> losses.Scores:
        numbers = sorted(numbers, key=lambda number: number >= len(self.pairs))  # pairs first, else as they were
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

    def layout(self, pairs: Sequence[Pair], shared: bool) -> Layout:
        """The pairs as tensors on this rank's device."""
        return lay_out(pairs, self.processing_class.pad_token_id or 0, shared, self.accelerator.device)

    def answers(self, model: Any, layout: Layout) -> torch.Tensor:
        """Log-probabilities of the answers, [pairs, 2] in nats, float32."""
        given = {"input_ids": layout.ids, "attention_mask": layout.mask, "position_ids": layout.positions, "fused_lm_head": True}
        if self.levers.answers_only:
            self._picked = layout.sources
            scored = model(**given, shift_labels=layout.targets[None]).log_probs[0]
        else:
            labels = torch.full_like(layout.ids, -100).flatten().index_put((layout.sources,), layout.targets)
            scored = model(**given, shift_labels=labels.view_as(layout.ids)).log_probs.flatten()[layout.sources]
        sums = [part.sum() for part in scored.split(layout.counts)]  # adds in a fixed order, unlike an indexed sum on a GPU
        return torch.stack(sums).view(-1, 2)

    def _keep_picked(self, _model: Any, _given: Any, output: Any) -> Any:
        if self._picked is not None:
            hidden = output.last_hidden_state
            output.last_hidden_state = hidden.flatten(0, 1)[self._picked][None]
            self._picked = None
        return output

    def _whole(self, loss: torch.Tensor, sums: torch.Tensor, pairs: int, shown: int) -> torch.Tensor:
        """Loss and figures over all ranks. The loss returned is such that the library's mean over ranks is the step's."""
        both = torch.cat([loss[None], sums])
        if self.args.world_size > 1:
            torch.distributed.all_reduce(both)
        chosen, rejected, chosen_gain, rejected_gain, in_order, margin = (both[1:-1] / pairs).tolist()
        beta = self.recipe.beta
        self._figures = {"logps/chosen": chosen, "logps/rejected": rejected}
        if self.rehearsal.rows:
            self._figures |= {"rehearsal/rows": shown} | ({"rehearsal/logps": float(both[-1]) / shown} if shown else {})
        if losses.needs_reference(self.terms):
            self._figures |= {
                "rewards/chosen": beta * chosen_gain,
                "rewards/rejected": beta * rejected_gain,
                "rewards/accuracies": in_order,
                "rewards/margins": beta * margin,
            }
        return both[0]

    # The start model

    def _get_ready(self) -> None:
        """Once: whether prompts can be shared, and what the start model says of every pair."""
        if self._ready:
            return
        self._ready = True
        for model in filter(None, (self.model, self.ref_model)):
            self._bare(self.accelerator.unwrap_model(model)).base_model.register_forward_hook(self._keep_picked)
        if self.levers.answers_only and self.levers.shared_prompt:
            with self.start_model() as start:
                self.shares = not agreed(self, not self._sharing_is_exact(start))
        if self.levers.known_reference and losses.needs_reference(self.terms):
            self._known = self._references(self)

    def start_model(self) -> AbstractContextManager[Any]:
        """The start model without gradients: the reference copy, the model without its adapter, or the model before its first step."""
        return _Start(self)

    def _sharing_is_exact(self, model: Any) -> bool:
        """Tries one pair both ways. Attention that is no plain one (windows, recurrence, other kernels) shows, or is known by its name."""
        config = self._bare(self.model).config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if config._attn_implementation not in ("sdpa", "eager") or kinds != {"full_attention"} or getattr(config, "sliding_window", None):
            return False
        both = [pair for pair in self.pairs if pair.prompt and pair.chosen and pair.rejected]
        if not both:
            return False
        pair = min(both, key=lambda pair: abs(pair.length(True) - PROBE))
        one, two = (self.answers(model, self.layout([pair], shared)) for shared in (True, False))
        tolerance = (0.02 if getattr(model, "is_quantized", False) else 1e-4) * max(len(pair.chosen), len(pair.rejected)) + 1e-4 * two.abs()
        return bool(((one - two).abs() <= tolerance).all())

    def _bare(self, model: Any) -> Any:
        """The language model itself, below adapters."""
        return model.get_base_model() if hasattr(model, "get_base_model") else model


PROBE = 256
"""Tokens of the pair that sharing is tried on: the one nearest to it."""


class _Start(AbstractContextManager[Any]):
    """See `Stepwise.start_model`."""

    def __init__(self, trainer: Stepwise) -> None:
        self.trainer = trainer

    def __enter__(self) -> Any:
        trainer = self.trainer
        model = trainer.ref_model or trainer.model
        trained = trainer.accelerator.unwrap_model(trainer.model)
        adapted = trainer.ref_model is None and hasattr(trained, "disable_adapter")
        self.contexts: list[Any] = [
            torch.no_grad(),
            disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs),
            use_adapter(trained, adapter_name=None) if adapted else nullcontext(),
            trainer.accelerator.autocast(),
        ]
        for context in self.contexts:
            context.__enter__()
        return model

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self.contexts):
            context.__exit__(*error)


SUMS = 7
"""Of them."""


def _sums(scores: losses.Scores) -> torch.Tensor:
    """Over pairs: both log-probabilities, both gains, pairs in order, margins; over demonstrations: log-probabilities."""
    chosen, rejected = (gain.detach() for gain in scores.gains)
    both = (scores.chosen.detach(), scores.rejected.detach(), chosen, rejected, (chosen > rejected).float(), chosen - rejected)
    return torch.stack([part.sum() for part in (*both, scores.shown.detach())])
