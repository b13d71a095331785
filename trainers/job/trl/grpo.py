"""GRPO trainer process: the model samples answers to prompts, and the scorers that label traces give the rewards.

The scorers are rebuilt from the plan, which records the digest of their code. Other installed code is rejected.
If the scorers abstain on an answer, the library excludes it from the mean of its group and gives it no advantage. If they abstain
on all answers, the run fails.

The prompts of a step are chosen when its answers are sampled, by one of the orders in trainers/prompt_order.py, which may use the probe's
rewards and the groups of the run so far. The library's trainer state, which every checkpoint contains, records the groups.
"""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from statistics import fmean
from typing import Any

from packaging.requirements import Requirement

from ratchet.contracts.conversation import stored_answer
from ratchet.contracts.data.datasets import is_mixed
from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.training import LeftOut, TrainingPlan
from ratchet.runtime.chat_template import CallFormat, read_answer, token_ids
from ratchet.runtime.jobs.job_protocol import RunFile
from ratchet.trainers.job.job_folder import Job
from ratchet.trainers.job.left_out import UNRENDERED, leave_out
from ratchet.trainers.job.model_fit import context_of
from ratchet.trainers.job.online_rewards import comparable, scored
from ratchet.trainers.job.prompt_length import own_call_format, prompt_length, rendered_prompt
from ratchet.trainers.job.start_tokenizer import load_tokenizer
from ratchet.trainers.job.trl.conversations import OMITTED, shows_tools, tools_of
from ratchet.trainers.job.trl.figures import ABSTAINED, JUDGE_TOKENS, WITHOUT_SIGNAL
from ratchet.trainers.job.trl.private_methods import replaces_private_methods
from ratchet.trainers.job.trl.runner import lora, main
from ratchet.trainers.prompt_order import ORDERS, Group
from ratchet.trainers.recipes.grpo import GRPORecipe

GROUPS = "groups"
"""Key of the groups of a step in the history of the library's trainer state: pairs of a prompt's index and 1 for a group with signal."""


def rows(run: Path, plan: TrainingPlan) -> list[dict[str, Any]]:
    """Return the prompts of a run folder as conversations with their references, and whether their rewards were mixed in the probe.

    Prompts without a reference are included only if some scorer needs none.
    """
    import pyarrow.parquet as pq

    from ratchet.rewards.scorer_set import scores_without_reference

    path = run / RunFile.PROMPTS
    stored = pq.read_schema(path).names
    table = pq.read_table(path, columns=["prompt", "reference", *(name for name in ("tools", "probe_rewards") if name in stored)])
    found = [
        {
            "prompt": json.loads(row["prompt"]),
            "reference": row["reference"],
            "tools": tools_of(row, f"prompt {number}"),
            "probe_rewards": row.get("probe_rewards"),
        }
        for number, row in enumerate(table.to_pylist())
    ]
    return found if scores_without_reference(plan) else [row for row in found if row["reference"] is not None]


def _needs_tools(row: Mapping[str, Any]) -> bool:
    return bool(row["tools"]) or any("tool_calls" in message or message["role"] == "tool" for message in row["prompt"])


def rendered(tokenizer: Any, prompts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the prompts as text, as a server renders them.

    The library would render the messages as they were logged, all prompts with the same tools, and a table would give all messages and
    tool calls the same keys, filled with nulls.
    """
    return [
        {
            "prompt": rendered_prompt(tokenizer, row["prompt"], row["tools"]),
            "reference": row["reference"],
            "asked": json.dumps(row["prompt"]),
            "may_call": bool(row["tools"]),
        }
        for row in prompts
    ]


def groups_of(history: Sequence[Mapping[str, Any]]) -> list[Group]:
    """Return the groups of a run so far, in order, from the history of the library's trainer state."""
    return [Group(prompt, bool(signal)) for entry in history for prompt, signal in entry.get(GROUPS, ())]


def reward_function(job: Job, calls: CallFormat | None = None, signals: list[bool] | None = None) -> Any:
    """Return a reward function for the library that applies the scorer set of the plan. The reward is None for an abstention.

    `calls` is how answers name tool calls. `signals` receives for each group in order whether it has a signal.
    """
    from ratchet.rewards.judge.job_verdicts import JobVerdicts
    from ratchet.rewards.scorer_set import planned_scorer_set

    verdicts = JobVerdicts(job.judge_tokens)
    scorer_set = planned_scorer_set(job.plan, verdicts)
    recipe = job.recipe(GRPORecipe)
    size = recipe.generations

    def reward(completions: Any, reference: Any, asked: Any, may_call: Any, log_metric: Any = None, **_: Any) -> list[float | None]:
        answers = [stored_answer(read_answer(text, calls if tools else None)) for text, tools in zip(completions, may_call, strict=True)]
        samples = [
            {"prompt": json.loads(prompt), "answer": answer, "reference": right}
            for prompt, answer, right in zip(asked, answers, reference, strict=True)
        ]

        def score(answers: Sequence[Mapping[str, Any]]) -> list[float | None]:
            verdicts.forget()
            return comparable(list(asked), scorer_set.label_unseen(answers))

        rewards = scored(score, samples)
        found = [is_mixed(rewards[at : at + size]) for at in range(0, len(rewards), size)]
        if signals is not None:
            signals.extend(found)
        if log_metric is not None:
            log_metric(ABSTAINED, sum(score is None for score in rewards) / len(rewards))
            log_metric(WITHOUT_SIGNAL, 1.0 - fmean(found))
            if scorer_set.judges:  # the library logs the mean of the calls of a step
                log_metric(JUDGE_TOKENS, verdicts.reported() * recipe.answers / len(rewards))
        return rewards

    return reward


def fitting(run: Path, plan: TrainingPlan, tokenizer: Any, recipe: GRPORecipe) -> tuple[list[dict[str, Any]], int, LeftOut]:
    """Return the prompts of a run folder that can be trained on, the tokens of the longest one, and the counts of the others.

    The tokens include those of the chat template. The limit is `nemo.max_prompt`, and what the model's context leaves beside an answer.
    Raises Permanent without a prompt, or if an answer leaves no room for one.
    """
    found = rows(run, plan)
    if not found:
        raise Permanent("the training set has no prompts, so the plan is not valid; plan again")
    context = context_of(run / RunFile.MODEL)
    limit = recipe.nemo.max_prompt
    if context is not None:
        limit = min(limit, context - recipe.max_completion)
    if limit < 1:
        raise Permanent(f"max_completion {recipe.max_completion} leaves no room for a prompt in the model's context of {context}; lower it")
    length = prompt_length(tokenizer)
    usable = found if shows_tools(tokenizer) else [row for row in found if not _needs_tools(row)]
    omitted, found = len(found) - len(usable), usable
    lengths = [length(row["prompt"], row["tools"]) for row in found]
    kept = [row for row, tokens in zip(found, lengths, strict=True) if tokens is not None and tokens <= limit]
    refused = lengths.count(None)
    long = f"longer than {limit} tokens (nemo.max_prompt and the model's context)"
    reasons = {OMITTED: omitted, UNRENDERED: refused, long: len(found) - refused - len(kept)}
    longest = max((tokens for tokens in lengths if tokens is not None and tokens <= limit), default=0)
    return kept, longest, LeftOut(what="prompts", rows=len(found) + omitted, reasons={why: n for why, n in reasons.items() if n})


def left_out(run: Path, plan: TrainingPlan, tokenizer: Any, recipe: GRPORecipe) -> list[LeftOut]:
    """Return the counts of the prompts in a run folder that the job leaves out. Raises as `fitting`."""
    return [fitting(run, plan, tokenizer, recipe)[2]]


def unfit_vllm() -> str | None:
    """Return why TRL cannot sample with vLLM here; None if it can. TRL's own package metadata says which releases it supports."""
    if importlib.util.find_spec("vllm") is None:
        return "vllm is not installed where the job runs"
    supported = next((one for text in requires("trl") or () if (one := Requirement(text)).name == "vllm"), None)
    try:
        found = version("vllm")
    except PackageNotFoundError:
        return "the package vllm has no version"
    if supported is not None and not supported.specifier.contains(found, prereleases=True):
        return f"TRL {version('trl')} supports vllm {supported.specifier}, and {found} is installed"
    return None


def sampling(recipe: GRPORecipe, gpus: int, longest: int) -> dict[str, Any]:
    """Return the library arguments for the sampling engine. `longest` is the number of tokens of the longest prompt.

    By default, vLLM reserves memory for the whole context of the model, and refuses to start if it does not fit.
    Raises Permanent if the recipe requires vLLM, and it is not installed or TRL does not support its release. The vLLM path has not been
    run on a GPU.
    """
    at_once = {"steps_per_generation": recipe.sampled_at_once // recipe.micro_batch}
    unfit = unfit_vllm()
    if recipe.generation == "vllm" and unfit:
        raise Permanent(
            f"recipe: generation = vllm, but {unfit}; install requirements/grpo_vllm.lock where jobs run, or set generation to plain"
        )
    if recipe.generation == "plain" or gpus == 0 or unfit:
        return at_once
    engine = {"vllm_gpu_memory_utilization": recipe.vllm_memory, "vllm_max_model_length": longest + recipe.max_completion}
    return {**at_once, "use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True, **engine}


def build(job: Job, shared: dict[str, Any]) -> Any:
    """Return TRL's GRPOTrainer, ready to train.

    The whole run is one epoch of its data set, whose rows only count the groups: the prompts are chosen when their turn comes.
    Raises Permanent if the training set has no usable prompts.
    """
    reward_function(job)  # rejects other scorer code before the library is loaded
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    logging.getLogger("trl.trainer.grpo_trainer").setLevel(logging.ERROR)  # its warning about an abstention quotes the user's text
    recipe = job.recipe(GRPORecipe)
    tokenizer = load_tokenizer(job.run / RunFile.MODEL, padding_side="left")
    prompts, longest, left = fitting(job.run, job.plan, tokenizer, recipe)
    leave_out(job, left)
    ready = rendered(tokenizer, prompts)
    probed = [row["probe_rewards"] for row in prompts]
    places = range(recipe.last_step * recipe.prompts_per_step)
    signals: list[bool] = []
    config = GRPOConfig(
        **shared,
        **sampling(recipe, job.gpus, longest),
        gradient_accumulation_steps=recipe.answers // recipe.micro_batch,
        num_generations=recipe.generations,
        max_completion_length=recipe.max_completion,
        temperature=recipe.temperature,
        top_p=recipe.top_p,
        top_k=recipe.top_k,
        beta=recipe.beta,
        epsilon=recipe.clip_low,
        epsilon_high=recipe.clip_high,
        loss_type=recipe.loss,
        scale_rewards=recipe.scale_rewards,
        shuffle_dataset=False,
    )

    @replaces_private_methods
    class Prompted(GRPOTrainer):
        def _tokenize_prompts(self, prompts: list[Any]) -> Any:
            """Tokenize rendered prompts as they are. The library would add the special tokens of the tokenizer again."""
            return [token_ids(self.processing_class, prompt) for prompt in prompts], None, {}

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Any:
            """Sample answers to the prompts whose turn it is instead of `inputs`, and record which groups have a signal."""
            history = self.state.log_history
            chosen = ORDERS[recipe.prompt_order](probed, groups_of(history), len(inputs) // recipe.generations, job.plan.seed)
            signals.clear()
            sampled = super()._generate_and_score_completions([dict(ready[one]) for one in chosen for _ in range(recipe.generations)])
            groups = [[prompt, int(signal)] for prompt, signal in zip(chosen, signals, strict=True)]
            history.append({"step": int(self.state.global_step) + 1, GROUPS: groups})
            return sampled

    return Prompted(
        model=str(job.run / RunFile.MODEL),
        reward_funcs=reward_function(job, own_call_format(tokenizer), signals),
        args=config,
        train_dataset=Dataset.from_list(ready).select([place % len(ready) for place in places]),
        processing_class=tokenizer,
        peft_config=lora(recipe),
    )


if __name__ == "__main__":
    main(build, GRPORecipe)
