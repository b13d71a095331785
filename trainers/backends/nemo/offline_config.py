"""Renders an SFT or DPO recipe as a NeMo RL configuration: the changes to the base file of the release for the method, as data.

The data set of a run is the sequence of all rows that it trains on, in their order (`trainers/job/nemo/offline_rows.py`). So the release
does not shuffle, has one epoch, and drops no batch. The module reads no file and imports nothing from the release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ratchet.trainers.backends.nemo.arithmetic import ClusterShape
from ratchet.trainers.backends.nemo.offline_checks import Offline, name_of, rows_in_memory
from ratchet.trainers.backends.nemo.sections import Dialect, checkpointing, engine, optimisation
from ratchet.trainers.recipes.dpo import DPORecipe

DATASET = "ratchet.trainers.job.nemo.offline_dataset.Run"
"""Import path of Ratchet's dataset class."""
PROCESSOR = "ratchet_answers"
"""Name of Ratchet's data processor for SFT in the registry of the release. DPO has no such registry."""


@dataclass(frozen=True)
class OfflinePlaces:
    """Paths that are visible on every node of the job."""

    base: str
    """Base file of the release for the method."""
    model: str
    """Folder of the start model."""
    train: str
    """JSONL file with the rows as tokens."""
    checkpoints: str
    """Folder in which the release saves its checkpoints."""
    logs: str
    """Folder for the logs of the release."""


def render_offline(
    recipe: Offline, cluster: ClusterShape, places: OfflinePlaces, seed: int, dialect: Dialect = "0.7", save_by: float | None = None
) -> dict[str, Any]:
    """Return the NeMo RL configuration as data; it inherits from `places.base`.

    The recipe must have passed the checks of `offline_checks.py`. `save_by` is the training time, in seconds, after which the release saves
    a checkpoint and ends the run.
    """
    off = dict.fromkeys(("wandb_enabled", "tensorboard_enabled", "mlflow_enabled", "swanlab_enabled", "monitor_gpus"), False)
    return {
        "defaults": places.base,
        name_of(recipe): {**_length(recipe, seed), **(_preference(recipe) if isinstance(recipe, DPORecipe) else {})},
        "policy": _policy(recipe, cluster, places, dialect),
        "data": _data(recipe, places),
        "checkpointing": checkpointing(recipe, places.checkpoints, None, dialect, save_by),
        "logger": {"log_dir": places.logs, **off},
        "cluster": {"gpus_per_node": cluster.gpus, "num_nodes": cluster.nodes},
    }


def _length(recipe: Offline, seed: int) -> dict[str, Any]:
    validation = {"val_period": 0, "val_at_start": False, "val_at_end": False}
    return {"max_num_epochs": 1, "max_num_steps": recipe.last_step, **validation, "seed": seed % 2**31}


def _preference(recipe: DPORecipe) -> dict[str, Any]:
    """The loss. The release sums or averages the term `sft` over the tokens of an answer; the sum would outweigh the preference."""
    return {
        "reference_policy_kl_penalty": recipe.beta,
        "preference_average_log_probs": False,
        "sft_average_log_probs": True,
        "preference_loss_weight": recipe.losses.get("sigmoid", 0.0),
        "sft_loss_weight": recipe.losses.get("sft", 0.0),
    }


def _policy(recipe: Offline, cluster: ClusterShape, places: OfflinePlaces, dialect: Dialect) -> dict[str, Any]:
    template = {} if isinstance(recipe, DPORecipe) else {"chat_template": "default"}  # the base file of SFT has one of its own
    return {
        "model_name": places.model,
        "tokenizer": {"name": places.model, **template},
        "train_global_batch_size": recipe.batch,
        "train_micro_batch_size": rows_in_memory(recipe, cluster),
        "max_total_sequence_length": recipe.max_length,
        "dynamic_batching": {"enabled": False},
        "sequence_packing": {"enabled": False},
        **optimisation(recipe),
        **engine(recipe, dialect),
    }


def _data(recipe: Offline, places: OfflinePlaces) -> dict[str, Any]:
    ready = {} if isinstance(recipe, DPORecipe) else {"add_bos": False, "add_eos": False, "add_generation_prompt": False}
    processor = {} if isinstance(recipe, DPORecipe) else {"processor": PROCESSOR}
    return {
        "_override_": True,
        "max_input_seq_length": recipe.max_length,
        **ready,
        "shuffle": False,
        "num_workers": 1,
        "train": {"dataset_name": DATASET, "data_path": places.train, **processor},
        "validation": None,
    }
