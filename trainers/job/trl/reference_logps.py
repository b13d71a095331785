"""Reference log-probabilities of all pairs under the start model, computed once and stored in the job's drop folder by content.

A later incarnation or attempt of the plan with the same arithmetic reads them instead of running the model.
They are stored in blocks of pairs of similar length, one safetensors file per block. So a run that is stopped before its first
step continues with the next block. A stored block is computed again if its bytes, its shape or any value is not valid.
This module defines which inputs determine the numbers. The trainer computes them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ratchet.contracts.errors import RatchetError
from ratchet.contracts.ids import digest
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.jobs.job_protocol import ARTIFACTS, RunFile, attempt_folder
from ratchet.trainers.job import parallel
from ratchet.trainers.job.job_folder import Job
from ratchet.trainers.job.trl.micro_batches import PairSize, plan_micro_batches
from ratchet.trainers.recipes.dpo import DPORecipe

VERSION = 2
"""Version of the computation. After an increment, stored blocks of earlier versions are not used."""


class Reference:
    """Provides the reference log-probabilities for all pairs of one run."""

    def __init__(self, job: Job, recipe: DPORecipe) -> None:
        self.job = job
        self.recipe = recipe
        root = ARTIFACTS.find(os.environ)
        self.artifacts = FolderArtifacts(root) if root else None
        earlier = (job.run.parent / attempt_folder(number) / RunFile.DROP for number in range(job.attempt - 1, 0, -1))
        self.stores = [self.artifacts, *map(FolderArtifacts, earlier)] if self.artifacts else []

    def __call__(self, trainer: Any) -> Any:
        """Return the log-probabilities of all pairs of the trainer (a `Stepwise`).

        The result has shape [pairs, 2] (chosen, rejected), dtype float32 and the unit nats. Pairs that the run never samples have the
        value NaN.
        """
        import torch

        table = torch.full((len(trainer.pairs), 2), float("nan"))
        order = sorted(set(trainer.order()), key=lambda i: (-trainer.pairs[i].length(trainer.shares), i))
        for begin in range(0, len(order), BLOCK):
            block = order[begin : begin + BLOCK]
            table[block] = self._block(trainer, block)
            if parallel.rank() == 0:
                self.job.events.path.touch()  # signals activity before the first step, so that the supervisor detects no stall
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
        """Return the artifact name of a block of pair indices: a digest of all inputs that determine the numbers.

        These are the model's files, the token ids of the pairs, the maximum length, the arithmetic and the library versions.
        The token ids include the effect of the chat template and of truncation.
        """
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
        """Return the stored table, float32 of shape [pairs, 2], or None if it is missing or not valid."""
        return next((table for store in self.stores if (table := self._read(store, name, pairs)) is not None), None)

    def _read(self, store: FolderArtifacts, name: str, pairs: int) -> Any:
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            bound = store.resolve(name)
            table = load(store.get(bound))["logps"] if bound else None  # `get` verifies the digest
        except (RatchetError, SafetensorError, KeyError, ValueError, TypeError) as error:
            self.job.events.write("warning", reason=f"cannot read the stored reference log-probabilities; computing them again: {error}")
            return None
        if table is None or tuple(table.shape) != (pairs, 2) or not bool(table.isfinite().all()):
            return None
        return table.float()

    def _keep(self, name: str, table: Any) -> None:
        """Store the table. A corrupt file that is already bound to the name is replaced."""
        from safetensors.torch import save

        if self.artifacts is None:
            return
        data = save({"logps": table.contiguous()})
        try:
            self._heal(name)
            self.artifacts.bind(name, self.artifacts.put(data))
        except RatchetError as error:  # not fatal: a later run computes the numbers again
            self.job.events.write("warning", reason=f"cannot store the reference log-probabilities: {error}")

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

    values = [value]
    broadcast_object_list(values, from_process=0)
    return values[0]


def computed(trainer: Any, block: Sequence[int]) -> Any:
    """Compute the reference log-probabilities of a block with the start model; the ranks share the work.

    `block` holds indices of pairs. Returns a float32 tensor of shape [len(block), 2] (chosen, rejected) in nats, the same on
    every rank.
    """
    import torch

    lengths = [trainer.pairs[i].length(trainer.shares) for i in block]
    # Without gradients, twice the tokens of a training micro-batch fit in memory.
    plans = plan_micro_batches(lengths, 2 * trainer.recipe.budget, 1 if trainer.shares else 2, trainer.args.world_size)
    table = torch.full((len(block), 2), float("nan"))
    with trainer.start_model() as start:
        for group in plans[trainer.args.process_index]:  # the same number on every rank; an empty group computes one pair and discards it
            pairs: list[PairSize] = [trainer.pairs[block[i]] for i in group or [len(block) - 1]]
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
"""Number of pairs that are planned, computed and stored together."""
