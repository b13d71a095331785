"""A small real LoRA adapter that changes what a model answers."""

from __future__ import annotations

from pathlib import Path

from ratchet.contracts.model import model_ref
from ratchet.contracts.serving import ModelVersion
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.trainers.job.checkpoints import publishable_adapter

MARGIN = 0.1
"""Least difference of the logits between a token of the answer and every other one, so that no rounding of a server changes it."""


def write_adapter(base: ModelVersion, artifacts: FolderArtifacts, folder: Path, tag: str, question: str, answer: str) -> ModelVersion:
    """Train an adapter of rank 4 until the most likely answer to `question` is `answer`, and return its version."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(1)
    files = artifacts.fetch(base.model.files, folder / "base")
    tokenizer = AutoTokenizer.from_pretrained(files)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(files, dtype="float32"),
        LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    said = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    ids, wanted = torch.tensor([[*prompt, *said]]), torch.tensor([said])
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    for _ in range(500):
        logits = model(input_ids=ids).logits[:, len(prompt) - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), wanted)
        others = logits.scatter(2, wanted[..., None], float("-inf")).amax(2)
        if bool((logits.gather(2, wanted[..., None])[..., 0] > others + MARGIN).all()):
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    else:
        raise AssertionError(f"the adapter has not learned its answer: loss {loss.item():.3f}")
    model.save_pretrained(folder / "raw")
    published = publishable_adapter(folder / "raw", folder / "adapter", base.model.files)
    ref = model_ref(published, artifacts.put_folder(published), base.model.files)
    return ModelVersion(line=base.line, number=base.number + 1, tag=tag, model=ref, cycle=None)
