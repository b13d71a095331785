"""Tests of the memory of a training on GPUs: against hand-made figures, and against recipes that are known to run."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.trainers.memory import GIB, ModelSizes, memory, model_sizes
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.sft import SFTRecipe

LLAMA_1B = {"num_hidden_layers": 16, "hidden_size": 2048, "vocab_size": 128256, "num_attention_heads": 32, "num_key_value_heads": 8}
LLAMA_8B = {"num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128256, "num_attention_heads": 32, "num_key_value_heads": 8}
QWEN_30B_A3B = {
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "vocab_size": 151936,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}


def sizes(config: dict[str, Any], billions: float) -> ModelSizes:
    """Return the sizes of a model with so many billion weights."""
    found = model_sizes(config, int(billions * 1e9))
    assert found is not None
    return found


def grpo(prompts: int, generations: int, micro_batch: int, answer: int, **nemo: Any) -> GRPORecipe:
    """Return a recipe of GRPO on NeMo RL; `checkpointing` states whether activations are recomputed."""
    checkpointing = nemo.pop("checkpointing", False)
    return GRPORecipe.model_validate(
        {
            "prompts_per_step": prompts,
            "generations": generations,
            "micro_batch": micro_batch,
            "max_completion": answer,
            "gradient_checkpointing": checkpointing,
            "nemo": {"max_prompt": answer, "packing": False, **nemo},
        }
    )


def test_the_state_of_a_trained_weight_is_sixteen_bytes_over_all_gpus() -> None:
    recipe = DPORecipe(batch=8, micro_batch=1, max_length=16)
    for nodes, gpus in ((1, 8), (3, 8)):
        found = memory(recipe, sizes(LLAMA_8B, 8.03), nodes, gpus, on_nemo=False)
        assert found is not None
        state = next(one.gib for one in found.training if one.name.startswith("weights"))
        assert state == pytest.approx(8.03e9 * 16 / (nodes * gpus) / GIB)


def test_without_gpus_there_is_nothing_to_estimate() -> None:
    assert memory(DPORecipe(), sizes(LLAMA_1B, 1.24), 1, 0, on_nemo=False) is None


def test_an_adapter_needs_a_small_part_of_the_whole_model() -> None:
    whole = DPORecipe(batch=8, micro_batch=1, max_length=512)
    adapter = whole.model_copy(update={"lora": DPORecipe.model_validate({"lora": {"rank": 16, "alpha": 32}}).lora})
    large, small = (memory(one, sizes(LLAMA_8B, 8.03), 1, 1, on_nemo=False) for one in (whole, adapter))
    assert large is not None
    assert small is not None
    assert large.too_large(79) == ["training"]
    assert small.too_large(79) == []


@pytest.mark.parametrize("change", [{"hidden_size": None}, {"num_hidden_layers": 0}, {"vocab_size": "many"}, {"num_attention_heads": 0}])
def test_a_config_without_the_sizes_gives_no_estimate(change: dict[str, Any]) -> None:
    assert model_sizes({**LLAMA_1B, **change}, 10**9) is None


def test_the_sizes_of_a_model_of_several_parts_are_those_of_its_text() -> None:
    assert model_sizes({"text_config": LLAMA_1B}, 10**9) == model_sizes(LLAMA_1B, 10**9)


# Recipes of NeMo RL v0.7.0 for GPUs of 80 GB: (model, billions, nodes, recipe). Facts from examples/configs/recipes/llm of the release.
RUN = {
    "llama3.2-1b-instruct-1n8g-fsdp2tp1": (LLAMA_1B, 1.24, 1, grpo(32, 16, 4, 256)),
    "llama3.1-8b-instruct-2n8g-fsdp2tp1-noncolocated": (
        LLAMA_8B, 8.03, 2, grpo(64, 32, 1, 2048, generation="dedicated", generation_nodes=1),
    ),
    "llama3.1-8b-instruct-4n8g-fsdp2tp1-long": (LLAMA_8B, 8.03, 4, grpo(64, 32, 1, 2048)),
}  # fmt: skip


@pytest.mark.parametrize("name", RUN)
def test_recipes_that_the_release_runs_on_gpus_of_80_gb_fit(name: str) -> None:
    config, billions, nodes, recipe = RUN[name]
    found = memory(recipe, sizes(config, billions), nodes, 8, on_nemo=True)
    assert found is not None
    assert found.too_large(79) == [], found
    assert found.answers_at_once(79) > 1


@pytest.mark.parametrize(
    ("config", "billions", "nodes", "recipe", "phases"),
    [
        (LLAMA_8B, 8.03, 1, grpo(8, 8, 1, 2048), []),
        (QWEN_30B_A3B, 30.5, 1, grpo(8, 8, 1, 2048, checkpointing=True), ["generation"]),
        (QWEN_30B_A3B, 30.5, 1, grpo(8, 8, 1, 2048, checkpointing=True, generation_tensor_parallel=4), []),
        (QWEN_30B_A3B, 30.5, 3, grpo(24, 8, 1, 2048, checkpointing=True, generation_tensor_parallel=4), []),
        (LLAMA_8B, 8.03, 1, grpo(8, 8, 8, 4096), ["training"]),
    ],
)
def test_known_sizes_on_nodes_of_eight_gpus(
    config: dict[str, Any], billions: float, nodes: int, recipe: GRPORecipe, phases: list[str]
) -> None:
    found = memory(recipe, sizes(config, billions), nodes, 8, on_nemo=True)
    assert found is not None
    assert found.too_large(79) == phases, found


def test_an_engine_that_has_no_room_for_an_answer_generates_none_at_once() -> None:
    found = memory(grpo(8, 8, 1, 2048), sizes(QWEN_30B_A3B, 30.5), 1, 8, on_nemo=True)
    assert found is not None
    assert found.answers_at_once(79) == 0


def test_tensor_parallelism_of_sft_and_dpo_divides_activations_on_nemo_rl_only() -> None:
    def training(kind: type[SFTRecipe | DPORecipe], on_nemo: bool) -> dict[str, float]:
        found = memory(complete(kind, {"nemo": {"tensor_parallel": 4}}), sizes(LLAMA_8B, 8.03), 2, 8, on_nemo)
        assert found is not None
        return {one.name: one.gib for one in found.training}

    for kind in (SFTRecipe, DPORecipe):
        split, whole = training(kind, True), training(kind, False)
        assert split["logits"] == pytest.approx(whole["logits"] / 4)
        assert split["activations"] == pytest.approx(whole["activations"] / 4)
        assert split["weights, gradients and optimiser"] == whole["weights, gradients and optimiser"]


@pytest.mark.parametrize("kind", [SFTRecipe, DPORecipe])
def test_the_estimate_for_nemo_rl_counts_the_rows_that_fill_the_share_of_a_gpu(kind: type[SFTRecipe | DPORecipe]) -> None:
    recipe = complete(kind, {"batch": 32, "micro_batch": 4})

    def activations(nodes: int) -> float:
        found = memory(recipe, sizes(LLAMA_8B, 8.03), nodes, 8, on_nemo=True)
        assert found is not None
        return next(one.gib for one in found.training if one.name == "logits")

    assert activations(4) == pytest.approx(activations(1) / 4)
