"""The form in which a candidate is served: as the whole model, or as an adapter with a pinned base model."""

from __future__ import annotations

from typing import cast

from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.training import Checkpoint
from ratchet.contracts.loop import TrainingSettings
from ratchet.contracts.model import ADAPTER_CONFIG, ADAPTER_WEIGHTS, ModelRef, refuse_custom_code
from ratchet.contracts.ports import SharingServer
from ratchet.flows.engine.context import LineContext


def no_adapter(training: TrainingSettings, method: str) -> str | None:
    """Return why runs of a method publish no adapter, or None if they do."""
    if not training.built_in(method) or training.trainer(method) != method:
        return f"the trainer {training.trainer(method)} publishes no adapter"
    return None if training.recipe(method).get("lora") else f"training.{method} has no lora"


def cannot_share(context: LineContext, start: ModelRef, rank: int) -> str | None:
    """Return why an adapter that is trained over `start` cannot be loaded into the champion's process, with the remedy; None if it can.

    The process must have loaded exactly the files of `start`. `rank` is that of the adapter.
    """
    champion = context.line_view().champion
    if champion is None or not context.server.capabilities.sharing:
        return None
    setting = 'serving.adapters = "shared"'
    if champion.model.parent is not None:
        return (
            f"{setting}: the champion {champion.tag} is an adapter, and its process has loaded another model than the merged one that is "
            'trained; set serving.adapters = "own server" or "merged"'
        )
    if champion.model.files != start.files:
        return (
            f"{setting}: the process of the champion {champion.tag} has loaded {champion.model.files[:12]}, and {start.files[:12]} is "
            'trained; set serving.adapters = "own server" or "merged"'
        )
    problem = cast("SharingServer", context.server).cannot_share(champion, rank)
    return f"{setting}: {problem}" if problem else None


def served_form(context: LineContext, checkpoint: Checkpoint, start: ModelRef, adapters: str) -> ModelRef:
    """Return the model of a checkpoint in the form in which the gate judges it and the line serves it.

    `start` is the model that the plan trains, and `adapters` the setting of the same name. Raises Permanent if the adapter's files are not
    those that its job claims, if it holds other files than an adapter has, if its base is not the start model, or if `adapters` is
    "shared" and the champion's process cannot load it.
    """
    adapter = checkpoint.adapter
    if adapter is None or adapters == "merged":
        return checkpoint.model
    if adapters == "shared" and (problem := cannot_share(context, start, 0)):
        raise Permanent(f"the adapter of checkpoint {checkpoint.id[:12]} cannot be served: {problem}")
    folder = context.artifacts.fetch(adapter.files, context.scratch / "models" / adapter.files)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    if names != {ADAPTER_CONFIG, ADAPTER_WEIGHTS}:
        raise Permanent(f"the adapter of checkpoint {checkpoint.id[:12]} must consist of {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}")
    refuse_custom_code(folder)
    if adapter.parent != start.files or context.read_model(folder, adapter.files, start.files) != adapter:
        raise Permanent(
            f"the adapter of checkpoint {checkpoint.id[:12]} does not match its job's claim: its files' digests differ, or its base is not "
            "the start model of the plan"
        )
    return adapter.model_copy(update={"merged": checkpoint.model})
