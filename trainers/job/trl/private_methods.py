"""Private methods of the libraries' trainers that Ratchet replaces or calls: all of them, with the parameters that they must have.

A private method may change in any release. A replacement that the library no longer calls would be silent: rows would be tokenized twice,
or drawn without their weights. So the class of a trainer is checked when it is defined, and a release that changed a method stops the job
with its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeVar

from ratchet.contracts.errors import Permanent

PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "_prepare_dataset": ("dataset", "processing_class", "args", "dataset_name"),
    "_precompute_ref_logps": ("dataset", "name", "batch_size"),
    "_prepare_for_training": ("max_steps", "train_dataloader", "resume_from_checkpoint"),
    "_load_from_checkpoint": ("resume_from_checkpoint", "model"),
    "_tokenize_prompts": ("prompts",),
    "_get_train_sampler": ("train_dataset",),
    "_generate_and_score_completions": ("inputs",),
}
"""Private method of a library's trainer -> its parameters in the releases that were tested: TRL 1.16, transformers 5.23."""
_Trainer = TypeVar("_Trainer", bound=type)


def replaces_private_methods(trainer: _Trainer) -> _Trainer:
    """Check a subclass of a library's trainer, and return it.

    Raises Permanent if a private method that it replaces is missing in the library or has other parameters.
    """
    for name, method in vars(trainer).items():
        if not name.startswith("_") or name.startswith("__") or not inspect.isfunction(method):
            continue
        library = trainer.__mro__[1:]
        if name in PARAMETERS or any(name in vars(base) for base in library):
            _refuse_changed(library, name)
    return trainer


def load_weights(trainer: Any, folder: Path) -> None:
    """Load the weights of a checkpoint into a trainer's model, also into a sharded one."""
    _refuse_changed([base for base in type(trainer).__mro__ if not base.__module__.startswith("ratchet.")], "_load_from_checkpoint")
    wrapped = {"model": trainer.model_wrapped} if trainer.is_fsdp_enabled else {}
    trainer._load_from_checkpoint(str(folder), **wrapped)


def _refuse_changed(library: Sequence[type], name: str) -> None:
    """Raise Permanent if a method of the library's classes, the most derived one first, is not as it was tested."""
    expected = PARAMETERS.get(name)
    method = next((vars(base)[name] for base in library if name in vars(base)), None)
    found = None if method is None else tuple(inspect.signature(method).parameters)[1:]
    if expected is not None and found == expected:
        return
    now = "does not exist" if found is None else f"takes ({', '.join(found)})"
    was = f"({', '.join(expected)})" if expected is not None else "unknown to Ratchet"
    raise Permanent(
        f"{library[0].__name__}.{name} {now} in trl {version('trl')} with transformers {version('transformers')}, and was {was}; "
        "install the releases of requirements/train.lock, or adapt trainers/job/trl/private_methods.py and the class that replaces it"
    )
