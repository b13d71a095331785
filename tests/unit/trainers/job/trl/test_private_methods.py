"""Private methods of the libraries' trainers: as they were tested in the installed releases, and a clear end where one has changed."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import Permanent
from ratchet.trainers.job.trl import private_methods
from ratchet.trainers.job.trl.private_methods import PARAMETERS, load_weights, replaces_private_methods

FOLDER = Path(private_methods.__file__).parent


class Library:
    """Stands in for a trainer of a library."""

    is_fsdp_enabled = False
    model_wrapped = None

    def _tokenize_prompts(self, prompts: list[Any], tools: Any) -> None:
        """A release has added a parameter."""

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """As it was tested."""

    def _collate(self) -> None:
        """A private method that Ratchet does not know."""


@pytest.mark.slow
def test_the_installed_releases_have_the_methods_as_they_were_tested() -> None:
    from trl import DPOTrainer, GRPOTrainer, SFTTrainer

    from ratchet.trainers.job.trl.dpo_trainer import Stepwise

    assert Stepwise.__mro__[1] is DPOTrainer
    for base, names in (
        (DPOTrainer, ("_prepare_dataset", "_precompute_ref_logps", "_prepare_for_training", "_load_from_checkpoint")),
        (GRPOTrainer, ("_tokenize_prompts", "_generate_and_score_completions")),
        (SFTTrainer, ("_get_train_sampler",)),
    ):
        replaces_private_methods(type("Replaced", (base,), {name: lambda self: self for name in names}))


def test_a_method_with_other_parameters_is_named() -> None:
    with pytest.raises(Permanent, match=r"Library\._tokenize_prompts takes \(prompts, tools\) in trl .*, and was \(prompts\); install"):
        replaces_private_methods(type("Mine", (Library,), {"_tokenize_prompts": lambda self: self}))


def test_a_method_that_is_gone_is_named() -> None:
    with pytest.raises(Permanent, match=r"Library\._get_train_sampler does not exist in trl"):
        replaces_private_methods(type("Mine", (Library,), {"_get_train_sampler": lambda self: self}))


def test_a_replaced_method_that_nobody_recorded_is_refused() -> None:
    with pytest.raises(Permanent, match=r"Library\._collate takes \(\) .*, and was unknown to Ratchet"):
        replaces_private_methods(type("Mine", (Library,), {"_collate": lambda self: self}))


def test_methods_of_its_own_are_no_matter() -> None:
    replaces_private_methods(type("Mine", (Library,), {"_own": lambda self: self}))


def test_weights_are_loaded_by_the_checked_method(tmp_path: Path) -> None:
    loaded = []

    class Loads(Library):
        def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
            loaded.append(resume_from_checkpoint)

    load_weights(Loads(), tmp_path)
    assert loaded == [str(tmp_path)]


def test_every_class_that_extends_a_trainer_is_checked() -> None:
    """Every subclass of a library's trainer in this package has the decorator, and nothing else calls a private method of a trainer."""
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(isinstance(one, ast.Name) and one.id.endswith("Trainer") for one in node.bases):
                names = [one.id for one in node.decorator_list if isinstance(one, ast.Name)]
                assert "replaces_private_methods" in names, f"{path.name}: {node.name}"
            if path.name != "private_methods.py" and isinstance(node, ast.Attribute) and node.attr in PARAMETERS:
                assert isinstance(node.value, ast.Call), f"{path.name}, line {node.lineno}: {node.attr} is called past private_methods.py"
