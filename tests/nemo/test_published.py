"""The published model outside of NeMo RL: in transformers, and in vLLM on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.model import model_ref
from ratchet.contracts.serving import ModelVersion
from ratchet.local.server import VllmServer
from ratchet.runtime.artifacts import FolderArtifacts
from tests.nemo.conftest import EVEN
from tests.nemo.runs import Bench, Run
from tests.real_vllm import ARGUMENTS, vllm_program
from tests.unit.trainers.conftest import CONTENT, write_model

QUESTIONS = [f"{a} {b}" for a in CONTENT[:6] for b in CONTENT[6:10]]
"""The prompts of the training."""


def answers(folder: Path, questions: Sequence[str], tokens: int = 4) -> list[str]:
    """Return the greedy answers of the model in `folder`, computed by transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(folder)
    found = []
    for question in questions:
        text = tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens)
        found.append(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True).strip())
    return found


def share(found: Sequence[str]) -> float:
    """Return the share of answers with the rewarded word."""
    return sum("yes" in answer.split() for answer in found) / len(found)


def test_the_published_model_loads_in_transformers_and_answers_as_trained(undisturbed: Run, told: dict[str, Any], tmp_path: Path) -> None:
    start = write_model(tmp_path / "start", words=EVEN)
    before, after = share(answers(start, QUESTIONS)), share(answers(undisturbed.model(), QUESTIONS))
    told |= {"rewarded_before": before, "rewarded_after": after}
    assert after > before + 0.3
    assert {path.name for path in undisturbed.model().iterdir()} == {path.name for path in start.iterdir()}


@pytest.mark.timeout(900)
def test_the_published_model_answers_in_vllm_as_in_transformers(
    make_bench: Callable[..., Bench], told: dict[str, Any], tmp_path: Path
) -> None:
    program = vllm_program(tmp_path)
    run = make_bench(words=EVEN, width=64).job(steps=6, save_every=6).done()
    folder, artifacts = run.model(), FolderArtifacts(tmp_path / "artifacts")
    version = ModelVersion(line="l", number=1, tag="v-nemo", model=model_ref(folder, artifacts.put_folder(folder)), cycle=None)
    server = VllmServer(tmp_path / "serving", artifacts, "assistant", executable=str(program), arguments=list(ARGUMENTS))
    expected = answers(folder, QUESTIONS)
    endpoint = server.ensure(version)
    try:
        served = [ask(endpoint.url, version.tag, question) for question in QUESTIONS]
    finally:
        server.stop(version.tag)
    told |= {"questions": len(QUESTIONS), "rewarded": share(served)}
    assert served == expected


def ask(url: str, model: str, question: str) -> str:
    """Return the greedy answer of a server."""
    import httpx

    body = {"model": model, "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 4}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).raise_for_status().json()
    return str(reply["choices"][0]["message"]["content"]).strip()
