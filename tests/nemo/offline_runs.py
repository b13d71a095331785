"""Runs of SFT and DPO on the release, and of the TRL job on the same plan, with rows of different lengths."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Attempt, JobEvent, Method, TrainingPlan
from ratchet.local.executor import LocalExecutor
from ratchet.trainers.backends.nemo.offline import NemoDPO, NemoSFT
from ratchet.trainers.backends.trl import DPO, SFT
from tests.nemo.runs import Bench, Run
from tests.unit.trainers.conftest import CONTENT, store
from tests.waiting import has_result, job_until

ON_NEMO: dict[Method, Any] = {Method.DPO: NemoDPO(), Method.SFT: NemoSFT()}
ON_TRL: dict[Method, Any] = {Method.DPO: DPO(), Method.SFT: SFT()}
SMALL = {
    "steps": 60, "save_every": 30, "batch": 8, "micro_batch": 4, "max_length": 32, "precision": "float32", "learning_rate": 0.006,
    "schedule": "constant", "warmup_steps": 0, "gradient_checkpointing": False,
}  # fmt: skip
"""Recipe of all runs. Without a warm-up, whose first rate differs between the trainers."""
TOO_LONG = " ".join(CONTENT[:2] * 20)
"""A prompt that leaves no room for an answer."""


def questions() -> list[str]:
    """Return the prompts of the rows, of one to three words."""
    return [" ".join(CONTENT[6 + (i + k) % 4] for k in range(1 + i % 3)) + f" {CONTENT[i % 6]}" for i in range(24)]


def answers() -> list[str]:
    """Return the answer to each prompt, of one to four words."""
    return [" ".join(CONTENT[(i + k) % 14] for k in range(1 + i % 4)) for i in range(24)]


def preferences() -> list[tuple[str, str]]:
    """Return the chosen answer to each prompt, of two words, and the rejected one, of one to three."""
    return [(f"{CONTENT[i % 14]} yes", " ".join(CONTENT[(i + 5 + k) % 14] for k in range(1 + i % 3))) for i in range(24)]


def plan(bench: Bench, method: Method, **changes: Any) -> TrainingPlan:
    """Return a plan for SFT or DPO, with a row that is too long and two sampling weights. `changes` are settings of the recipe."""
    asked = [*questions(), TOO_LONG]
    prompts = [json.dumps([{"role": "user", "content": question}]) for question in asked]
    weights = [0.5 + 0.5 * (i % 2) for i in range(len(asked))]
    chosen, rejected = (list(part) for part in zip(*preferences(), strict=True))
    shown = store(bench.artifacts, bench.folder / "answers.parquet", {"prompt": prompts, "answer": [*answers(), "no"], "weight": weights})
    pairs = {"prompt": prompts, "chosen": [*chosen, "no"], "rejected": [*rejected, "yes"], "weight": weights}
    ranked = store(bench.artifacts, bench.folder / "preferences.parquet", pairs)
    made = bench.plan(method, batch=8).model_copy(update={"demonstrations": shown, "pairs": ranked})
    return made.model_copy(update={"recipe": ON_NEMO[method].recipe({**SMALL, **changes})})


def offline(bench: Bench, method: Method, gpus: int = 1, **changes: Any) -> Run:
    """Return a job of SFT or DPO on the release that is not started."""
    return bench.run(ON_NEMO[method], plan(bench, method, **changes), Attempt(number=1, timeout=3000.0, gpus=gpus))


def on_trl(bench: Bench, method: Method, **changes: Any) -> tuple[list[JobEvent], Path]:
    """Run the TRL job of the same plan to its end. Return its events, and a folder with the model that it published."""
    executor = LocalExecutor(bench.folder / "trl", bench.folder / "artifacts")
    spec = ON_TRL[method].job(plan(bench, method, **changes), Attempt(number=99, timeout=600.0))
    executor.submit(spec, 1)
    status = job_until(executor, spec.name, has_result, 300, lambda: str(executor.events(spec.name))[-2000:])
    assert status.outcome == Outcome.DONE, status
    return executor.events(spec.name), bench.published(spec, 1)


def steps_of(events: Sequence[JobEvent]) -> dict[int, Mapping[str, float]]:
    """Return step -> figures of the progress events."""
    return {event.step: dict(event.data) for event in events if event.kind == "progress"}


def left_out(events: Sequence[JobEvent]) -> list[str]:
    """Return what a job said about the rows that it left out."""
    return [text for event in events if event.kind == "warning" and "excluded:" in (text := str(event.data.get("reason", "")))]


def apart(found: Mapping[int, Mapping[str, float]], expected: Mapping[int, Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    """Return figure -> largest difference over all steps, which must be the same ones."""
    assert list(found) == list(expected)
    return {f"{name}_difference": float(f"{max(abs(found[step][name] - expected[step][name]) for step in found):.3g}") for name in names}


def weights_apart(one: Path, other: Path) -> float:
    """Return the largest difference between the weights of two published models with the same tensors."""
    from safetensors.torch import load_file

    first, second = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert set(first) == set(second)
    return max(float((tensor.float() - second[name].float()).abs().max()) for name, tensor in first.items())


def answered(folder: Path) -> float:
    """Return the share of questions to which the model in `folder` gives the trained answer, greedily."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(folder)
    right = 0
    for question, answer in zip(questions(), answers(), strict=True):
        ids = tokenizer(f"<user> {question} <assistant>", return_tensors="pt", add_special_tokens=False)["input_ids"]
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=6)
        right += tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True).strip() == answer
    return right / len(questions())


def preferred(folder: Path) -> float:
    """Return the share of pairs whose chosen answer is more probable than the rejected one, by the model in `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(folder)

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def logp(question: str, answer: str) -> float:
        asked = tokenizer(f"<user> {question} <assistant>", return_tensors="pt", add_special_tokens=False)["input_ids"]
        said = tokenizer(f"{answer} <end>", return_tensors="pt", add_special_tokens=False)["input_ids"]
        ids = torch.cat([asked, said], dim=1)
        scores = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])
        return float(scores[asked.shape[1] - 1 :].sum() / said.shape[1])

    pairs = list(zip(questions(), preferences(), strict=True))
    return sum(logp(question, chosen) > logp(question, rejected) for question, (chosen, rejected) in pairs) / len(pairs)
