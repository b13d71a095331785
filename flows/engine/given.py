"""Opens a cycle with a model that was trained elsewhere: gate, approval and rollout as for a model of the line's own training."""

from __future__ import annotations

from pathlib import Path

from ratchet.contracts.errors import Permanent, Rejected
from ratchet.contracts.model import ModelRef
from ratchet.contracts.rows import GivenModel
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.line import not_adopted, open_cycle, stored_model

_COMPARED = {"tokenizer": "tokenizer", "chat_template": "chat template", "generation_config": "generation config"}


def add_candidate(context: LineContext, folder: Path, actor: str, reason: str) -> tuple[str, GivenModel]:
    """Store the model in `folder` and open a cycle that judges it. Return the cycle's stream name and what was given.

    The model may have another architecture, tokenizer or chat template than the champion: both are compared by their answers. Raises
    Permanent if `folder` is no model folder, contains code or is an adapter, and Rejected as `open_cycle`, or if it is the champion's
    model.
    """
    line = context.line_view()
    if line.champion is None:
        raise not_adopted(context)
    if line.open_cycle is not None:  # before a large copy
        raise Rejected("cycle_open", f"{line.open_cycle} is still open; `ratchet status` shows what it waits for")
    if (folder / "adapter_config.json").exists():
        raise Permanent(f"{folder} is an adapter; merge it into its base model (merge_and_unload), and give the folder of the whole model")
    model = stored_model(context, folder)
    if model.id in (line.champion.model.id, line.champion.model.whole.id):
        raise Rejected("is_champion", f"{folder} contains the model that serves already ({line.champion.tag})")
    given = GivenModel(model=model, folder=str(folder.absolute()), differs=differences(line.champion.model.whole, model))
    return open_cycle(context, f"model of {actor}: {reason}", actor, given), given


def differences(champion: ModelRef, given: ModelRef) -> tuple[str, ...]:
    """Return which files that are no weights differ between two models."""
    return tuple(word for name, word in _COMPARED.items() if getattr(champion, name) != getattr(given, name))
