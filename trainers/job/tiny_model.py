"""Trains a tiny language model from scratch, so that the whole loop can run without a download.

Usage: `python -m ratchet.trainers.job.tiny_model PAIRS.jsonl CORPUS.txt OUT`. PAIRS has one JSON object with "prompt" and "answer" per
line, the training data of the model. CORPUS has one text per line, the training data of the tokenizer. OUT becomes a standard model folder:
Llama architecture, byte-level BPE, chat template, generation config, safetensors.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import click
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END, PAD, USER, ASSISTANT = "<|end|>", "<|pad|>", "<|user|>", "<|assistant|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<|user|>{{ m['content'] }}"
    "{% elif m['role'] == 'assistant' %}<|assistant|>{{ m['content'] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
Encoded = tuple[list[int], int]
"""Token ids of a row, and the index at which the answer begins."""


def build_tokenizer(corpus: list[str], vocabulary: int, context: int) -> Any:
    """Train a byte-level BPE tokenizer on `corpus` and return it with the chat template.

    It can represent any text. `vocabulary` is the maximum number of tokens, `context` the model's context in tokens.
    """
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, END, USER, ASSISTANT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(corpus, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token=END,
        pad_token=PAD,
        padding_side="left",
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: Any, hidden: int, layers: int, context: int) -> Any:
    """Return a small Llama model with random weights, four attention heads and tied embeddings.

    `hidden` is the width, `layers` the number of layers, and `context` the context in tokens.
    """
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.05,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=context // 2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def encode(tokenizer: Any, prompt: str, answer: str, context: int) -> Encoded:
    """Return one training row, truncated to `context` tokens."""
    head = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False)
    ids = [*head, *tokenizer(answer)["input_ids"], tokenizer.eos_token_id]
    return ids[:context], len(head)


def pretrain(model: Any, rows: list[Encoded], pad: int, seed: int, steps: int, batch: int, rate: float) -> float:
    """Train the model with AdamW, a warm-up of 20 steps and a cosine schedule. Return the last loss in nats per token.

    The loss covers prompts and answers. `pad` is the padding token id, `batch` the rows per step, and `rate` the peak learning rate.
    """
    draw = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
    model.train()
    loss = torch.tensor(float("nan"))
    for step in range(steps):
        scale = min(1.0, (step + 1) / 20) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate * scale
        loss = model(**_collate(draw.sample(rows, min(batch, len(rows))), pad)).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 9 or step == steps - 1:
            click.echo(json.dumps({"step": step + 1, "total": steps, "loss": round(loss.item(), 4)}))
    return float(loss.item())


def _collate(rows: list[Encoded], pad: int) -> dict[str, Any]:
    width = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), width), pad)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, (row, _) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    return {"input_ids": ids, "labels": ids.masked_fill(mask == 0, -100), "attention_mask": mask}


@click.command()
@click.argument("pairs", type=click.Path(exists=True, path_type=Path))
@click.argument("corpus", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--seed", default=0)
@click.option("--steps", default=110)
@click.option("--batch", default=64)
@click.option("--rate", default=3e-3, help="Peak learning rate.")
@click.option("--hidden", default=128)
@click.option("--layers", default=3)
@click.option("--context", default=256, help="Tokens.")
@click.option("--vocabulary", default=768, help="Maximum number of tokens.")
@click.option("--threads", default=1)
def main(
    pairs: Path, corpus: Path, out: Path, seed: int, steps: int, batch: int, rate: float, hidden: int, layers: int, context: int,
    vocabulary: int, threads: int,
) -> None:  # fmt: skip
    """Train a tiny model on PAIRS and save it to OUT."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(corpus.read_text(encoding="utf-8").splitlines(), vocabulary, context)
    model = build_model(tokenizer, hidden, layers, context)
    data = [json.loads(line) for line in pairs.read_text(encoding="utf-8").splitlines()]
    rows = [encode(tokenizer, row["prompt"], row["answer"], context) for row in data]
    pretrain(model, rows, tokenizer.pad_token_id, seed, steps, batch, rate)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
