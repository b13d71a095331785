"""Tests of adapters on NeMo RL: which modules the rendered patterns select, and that the export can merge such an adapter.

The release compares a pattern with the full dotted name of a module. `selected` repeats this with `fnmatch`, so most tests need no
release. One test runs the matcher of a release, if it is available.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import types
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from ratchet.trainers.backends.nemo.arithmetic import ClusterShape
from ratchet.trainers.backends.nemo.config import RunCounts, render_config
from ratchet.trainers.job.model_fit import recipe_problems
from ratchet.trainers.job.nemo import export, steps
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.grpo import GRPORecipe
from tests.needs import Need, lacks
from tests.unit.trainers.conftest import write_model
from tests.unit.trainers.nemo import variants

pytestmark = pytest.mark.slow  # torch takes seconds to load

RELEASES = [Path(root) for root in os.environ.get("RATCHET_NEMO_RL", "").split(":") if root]
MATCHER = "3rdparty/Automodel-workspace/Automodel/nemo_automodel/components/_peft/module_matcher.py"
LINEAR = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
TARGETS: dict[str, tuple[Any, set[str]]] = {
    "all linear": ("all-linear", LINEAR),
    "attention": (["q_proj", "v_proj"], {"q_proj", "v_proj"}),
    "a parent": (["self_attn.o_proj"], {"o_proj"}),
    "a pattern": (["*.layers.0.mlp.*_proj"], {"gate_proj", "up_proj", "down_proj"}),
}
"""Targets in the recipe, and the last parts of the module names that they select in a Llama model."""


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def start(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small model with its own output head, or with one that is tied to the embedding."""
    return write_model(tmp_path_factory.mktemp("start") / "model", tied=request.param)


def section(targets: Any) -> dict[str, Any]:
    """Return the rendered section on the adapter."""
    recipe = complete(GRPORecipe, {"lora": {"rank": 4, "alpha": 6.0, "targets": targets}})
    config = render_config(recipe, ClusterShape(1, 1), variants.PLACES, RunCounts(100, 10), 1)
    found: dict[str, Any] = config["policy"]["dtensor_cfg"]["lora_cfg"]
    return found


def selected(model: Any, lora: dict[str, Any]) -> set[str]:
    """Return the names of the modules that get an adapter, by the rules of the release."""
    import torch

    assert not lora["match_all_linear"], "this would include the output head"
    names = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    if lora["target_modules"]:
        return {name for name in names if any(fnmatchcase(name, pattern) for pattern in lora["target_modules"])}
    return {name for name in names if not any(fnmatchcase(name, pattern) for pattern in lora["exclude_modules"])}


def load(start: Path) -> Any:
    """Load the model in `start`."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(start, trust_remote_code=False)


@pytest.mark.parametrize("targets", TARGETS)
def test_the_patterns_select_the_named_layers_and_never_the_output_head(start: Path, targets: str) -> None:
    lora = section(TARGETS[targets][0])
    assert bool(lora["target_modules"]) != bool(lora["exclude_modules"]), "the release accepts one of the two lists"
    found = selected(load(start), lora)
    assert {name.rpartition(".")[2] for name in found} == TARGETS[targets][1]


@pytest.mark.parametrize("targets", TARGETS)
def test_an_adapter_on_the_selected_layers_can_be_exported(start: Path, targets: str, tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file

    names = selected(load(start), section(TARGETS[targets][0]))
    torch.manual_seed(1)
    model = get_peft_model(load(start), LoraConfig(r=4, lora_alpha=6, target_modules=sorted(names), task_type="CAUSAL_LM"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path / "step_1" / steps.WEIGHTS)
    out = export.export(start, tmp_path / "step_1", True, tmp_path / "work", tmp_path / "model")
    before, after = load_file(start / "model.safetensors"), load_file(out / "model.safetensors")
    expected = model.merge_and_unload().state_dict()
    assert {name.removesuffix(".weight") for name, value in after.items() if not value.equal(before[name])} == names
    for name, value in after.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)


def test_a_tied_output_head_is_no_target(start: Path) -> None:
    recipe = complete(GRPORecipe, {"lora": {"targets": ["q_proj", "lm_head"]}, "nemo": {"max_prompt": 16}, "max_completion": 16})
    if json.loads((start / "config.json").read_text())["tie_word_embeddings"]:
        (problem,) = recipe_problems(start, recipe, on_nemo=True)
        assert "lm_head, but it is tied to the embedding" in problem
    else:
        assert recipe_problems(start, recipe, on_nemo=True) == []


@pytest.mark.parametrize("root", RELEASES or [Path()], ids=lambda root: root.name or "none")
@pytest.mark.parametrize("targets", TARGETS)
def test_the_matcher_of_the_release_selects_the_same_layers(start: Path, targets: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    if not (root / MATCHER).is_file():
        lacks(Need.NEMO_RL, f"RATCHET_NEMO_RL does not name a release with {MATCHER}")
    for name in ("nemo_automodel", "nemo_automodel.shared", "nemo_automodel.shared.import_utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["nemo_automodel.shared.import_utils"].safe_import_te = lambda: (False, None)  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("module_matcher", root / MATCHER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "module_matcher", module)
    spec.loader.exec_module(module)
    lora, model = section(TARGETS[targets][0]), load(start)
    matcher = module.ModuleMatcher(**{key: lora[key] for key in ("target_modules", "exclude_modules", "match_all_linear")})
    linear = [(name, found) for name, found in model.named_modules() if isinstance(found, torch.nn.Linear)]
    assert {name for name, found in linear if matcher.match(found, name)} == selected(model, lora)
