"""What the start model says of every pair: computed once, kept in the installation's artifacts, found again by content.

A later incarnation, attempt or plan with the same start model, pairs and arithmetic reads it instead of running the model. It
lies in blocks of pairs of like length, each a safetensors file of numbers, so that a run which is stopped before its first step
goes on where it was. Whatever is not exactly what was asked for (bytes, shape, a number that is none) is computed anew and
never trusted. This module knows which inputs decide the numbers; how they are computed is the trainer's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contracts.errors import RatchetError
from contracts.files import FolderArtifacts
from contracts.ids import digest
from trainers.inside import parallel
from trainers.inside.batches import Pair, plan
from trainers.inside.job import Job
from trainers.recipes import DPORecipe

VERSION = 2
"""Of how the numbers are computed: another one finds nothing of before."""


class Reference:
    """The start model's log-probabilities for one run: all pairs it will meet."""

    def __init__(self, job: Job, recipe: DPORecipe) -> None:
        self.job = job
        self.recipe = recipe
        root = os.environ.get("RATCHET_ARTIFACTS")
        self.artifacts = FolderArtifacts(Path(root)) if root else None

    def __call__(self, trainer: Any) -> Any:
        """[pairs, 2] in nats: chosen, rejected; not a number for pairs that the run never meets."""
        import torch

        table = torch.full((len(trainer.pairs), 2), float("nan"))
        order = sorted(set(trainer.order()), key=lambda i: (-trainer.pairs[i].length(trainer.shares), i))
        for begin in range(0, len(order), BLOCK):
            block = order[begin : begin + BLOCK]
            table[block] = self._block(trainer, block)
            if parallel.rank() == 0:
                self.job.events.path.touch()  # no step yet, but a sign of life: the wrapper stops what stalls
        return table

    def _block(self, trainer: Any, block: list[int]) -> Any:
        name = self.name(trainer, block)
        found = _from_rank_0(trainer, self._kept(name, len(block)) if parallel.rank() == 0 else None)
        if found is None:
            found = computed(trainer, block)
            if parallel.rank() == 0:
                self._keep(name, found)
        return found

    def name(self, trainer: Any, block: Sequence[int]) -> str:
        """Over everything that decides the numbers: the model's files, the pairs' tokens (so template and cut too), arithmetic, library."""
        import torch
        import transformers

        lora = self.recipe.lora
        arithmetic = [
            trainer.accelerator.device.type,
            trainer.accelerator.mixed_precision,
            lora.quantize if lora else "none",
            trainer.shares,
        ]
        made_by = [VERSION, torch.__version__, transformers.__version__]
        content = [self.job.plan.start.files, self.recipe.max_length, [list(trainer.pairs[i]) for i in block]]
        return f"reference/{digest([made_by, content, arithmetic])}"

    def _kept(self, name: str, pairs: int) -> Any:
        """The table of that name, if it is there and whole."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        if self.artifacts is None:
            return None
        try:
            bound = self.artifacts.resolve(name)
            table = load(self.artifacts.get(bound))["logps"] if bound else None  # its digest is checked here
        except (RatchetError, SafetensorError, KeyError, ValueError, TypeError) as error:
            self.job.events.write("warning", reason=f"the kept reference cannot be read and is computed anew: {error}")
            return None
        if table is None or tuple(table.shape) != (pairs, 2) or not bool(table.isfinite().all()):
            return None
        return table.float()

    def _keep(self, name: str, table: Any) -> None:
        """Where the name is bound to a file that was corrupt, the same bytes are written to its place."""
        from safetensors.torch import save

        if self.artifacts is None:
            return
        data = save({"logps": table.contiguous()})
        try:
            self._heal(name)
            self.artifacts.bind(name, self.artifacts.put(data))
        except RatchetError as error:  # the run has its numbers; the next one computes them again
            self.job.events.write("warning", reason=f"the reference could not be kept: {error}")

    def _heal(self, name: str) -> None:
        assert self.artifacts is not None
        bound = self.artifacts.resolve(name)
        if bound is None:
            return
        try:
            self.artifacts.get(bound)
        except RatchetError:
            (self.artifacts.root / "sha256" / bound[:2] / bound).unlink(missing_ok=True)


def _from_rank_0(trainer: Any, value: Any) -> Any:
    if trainer.args.world_size == 1:
        return value
    from accelerate.utils import broadcast_object_list

    said = [value]
    broadcast_object_list(said, from_process=0)
    return said[0]


def computed(trainer: Any, block: Sequence[int]) -> Any:
    """[pairs of the block, 2], from the start model itself; ranks share the work."""
    import torch

    lengths = [trainer.pairs[i].length(trainer.shares) for i in block]
    plans = plan(lengths, 2 * trainer.recipe.budget, 1 if trainer.shares else 2, trainer.args.world_size)
    table = torch.full((len(block), 2), float("nan"))
    with trainer.start_model() as start:
        for group in plans[trainer.args.process_index]:  # as many on every rank; an empty one runs a pair for nothing
            pairs: list[Pair] = [trainer.pairs[block[i]] for i in group or [len(block) - 1]]
            sums = trainer.answers(start, trainer.layout(pairs, trainer.shares))
            if group:
                table[group] = sums.float().cpu()
    if trainer.args.world_size > 1:
        parts: list[Any] = [None] * trainer.args.world_size
        torch.distributed.all_gather_object(parts, table)
        for other in parts:
            table = torch.where(other.isnan(), table, other)
    return table


BLOCK = 512
"""Pairs that are planned, computed and kept together. Without gradients, twice the tokens of training fit."""
