"""The form in which a candidate is served: as the whole model, or as an adapter with a pinned base model."""

from __future__ import annotations

from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.training import Checkpoint
from ratchet.contracts.model import ADAPTER_CONFIG, ADAPTER_WEIGHTS, ModelRef, refuse_custom_code
from ratchet.flows.engine.context import LineContext


def served_form(context: LineContext, checkpoint: Checkpoint, start: ModelRef, adapters: str) -> ModelRef:
    """Return the model of a checkpoint in the form in which the gate judges it and the line serves it.

    `start` is the model that the plan trains, and `adapters` the setting of the same name. Raises Permanent if the adapter's files are not
    those that its job claims, if it holds other files than an adapter has, or if its base is not the start model.
    """
    adapter = checkpoint.adapter
    if adapter is None or adapters == "merged":
        return checkpoint.model
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
