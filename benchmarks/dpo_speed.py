"""DPO throughput in tokens per second, compared with the library's plain script, and the contribution of each optimization.

The plain script is the library's trainer as guides show it: micro-batches of 4 pairs, 8 micro-batches per step, max_length 4096, the start
model in memory, gradient checkpointing on. Ratchet's trainer is measured with its optimizations switched on one at a time. Both use
the same pairs in the same order with the same loss, so their loss curves can be compared step by step.

Lengths are lognormal. Profile `traces`: prompts with a median of 256 tokens (sigma 0.6) and answers of 64 (sigma 0.9), as in a conversation
with a system prompt and a short answer. Profile `chat`: prompts of 64 and answers of 128, where the gain is smaller.

The model is small, but its output head has a quarter of its weights, as in a model of 1B with a vocabulary of 128k. The benchmark uses one
core and measures processor time, so other load on the machine changes little. Every pair is used once. The `cold` figures include the full
time to compute the reference log-probabilities; the `warm` figures apply to a later attempt or plan that finds them stored.

`python benchmarks/dpo_speed.py`
"""

from __future__ import annotations

import gc
import json
import random
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import click

from ratchet.trainers.code_digest import code_digest
from ratchet.trainers.job.trl.micro_batches import PairSize
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.dpo import DPORecipe

RESULTS = Path(__file__).parent / "results" / "dpo_speed.json"
PROFILES = {"traces": (256, 0.6, 64, 0.9), "chat": (64, 0.6, 128, 0.9)}
"""For each profile: median and sigma of the prompt lengths, then median and sigma of the answer lengths, in tokens."""
LONGEST = 4096


class Size(NamedTuple):
    """The size of the model and of the run."""

    hidden: int = 128
    layers: int = 3
    vocabulary: int = 2048
    steps: int = 4
    """Optimizer steps; the first one is not timed."""
    batch: int = 32
    """Pairs per optimizer step."""
    scale: float = 1.0
    """Factor on all lengths."""


def write_model(folder: Path, size: Size) -> Path:
    """Write a Llama model with random weights and a tokenizer of the words `w0` to `w99`; returns the folder."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(1)
    large = size.hidden > 1024  # the shape of a 1B model: fewer key heads, wide layers, tied embeddings
    heads = max(2, size.hidden // 64)
    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=(4 if large else 3) * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4 if large else heads,
        max_position_embeddings=2 * LONGEST,
        tie_word_embeddings=large,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    named = {"<pad>": 0, "<end>": 1, "<user>": 2, "<assistant>": 3} | {f"w{n}": 4 + n for n in range(100)}
    words = Tokenizer(models.WordLevel(named, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<pad>")
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% if m.role == 'assistant' %}<end> {% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant> {% endif %}"
    )
    tokenizer.save_pretrained(folder)
    return folder


def some_pairs(profile: str, n: int, size: Size) -> list[PairSize]:
    """Return `n` random pairs with the lengths of the profile.

    Chosen answers use the lower half of the vocabulary and rejected ones the upper half, so that there is a preference to learn.
    """
    chance = random.Random(7)
    prompt, prompt_sigma, answer, answer_sigma = PROFILES[profile]

    def words(median: float, sigma: float, low: int, high: int) -> list[int]:
        n = max(2, min(LONGEST // 3, round(median * size.scale * chance.lognormvariate(0, sigma))))
        return [chance.randrange(low, high) for _ in range(n)]

    half, top = size.vocabulary // 2, size.vocabulary

    def one() -> PairSize:
        return PairSize(words(prompt, prompt_sigma, 5, top), words(answer, answer_sigma, 5, half), words(answer, answer_sigma, half, top))

    return [one() for _ in range(n)]


def shared(folder: Path, steps: int, **changes: Any) -> dict[str, Any]:
    """Return the training arguments that both trainers share, with `changes` applied."""
    base = {
        "output_dir": str(folder), "seed": 3, "max_steps": steps, "logging_steps": 1, "save_strategy": "no", "report_to": "none",
        "learning_rate": 1e-3, "lr_scheduler_type": "constant", "optim": "adamw_torch", "weight_decay": 0.0, "disable_tqdm": True,
        "use_cpu": True, "bf16": False, "model_init_kwargs": {"dtype": "float32"}, "gradient_checkpointing": True,
        "per_device_train_batch_size": 4,
    }  # fmt: skip
    return base | changes


def plain(model: Path, pairs: list[PairSize], given: dict[str, Any], batch: int) -> Any:
    """Return the library's trainer with two changes: its rows are already tokenized, and it takes them in the given order."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    class Plain(DPOTrainer):
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

        def _get_train_sampler(self, _dataset: Any = None) -> Any:
            return list(range(len(pairs)))

    config = DPOConfig(**given, gradient_accumulation_steps=batch // given["per_device_train_batch_size"], max_length=LONGEST)
    rows = Dataset.from_list([dict(zip(("prompt_ids", "chosen_ids", "rejected_ids"), pair, strict=True)) for pair in pairs])
    return Plain(model=str(model), args=config, train_dataset=rows, processing_class=AutoTokenizer.from_pretrained(model))


class Kept:
    """Computes the reference log-probabilities of a run and measures the time."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.seconds = 0.0

    def __call__(self, trainer: Any) -> Any:
        from ratchet.trainers.job.trl.reference_logps import computed

        began = self.clock()
        table = computed(trainer, range(len(trainer.pairs)))
        self.seconds = self.clock() - began
        return table


def ours(
    model: Path, pairs: list[PairSize], given: dict[str, Any], batch: int, optimizations: Any, kept: Kept, max_length: int = LONGEST
) -> Any:
    """Return the trainer of a Ratchet job with these optimizations; it takes the pairs in the given order."""
    from transformers import AutoTokenizer

    from ratchet.trainers.job.trl.dpo_trainer import Stepwise, configuration, placeholder

    class Ordered(Stepwise):
        def order(self) -> list[int]:
            return list(range(len(self.pairs)))

    recipe = complete(
        DPORecipe,
        {"losses": {"sigmoid": 1.0}, "batch": batch, "micro_batch": 4, "max_length": max_length, "steps": given["max_steps"]},
    )
    return Ordered(
        recipe, pairs, [1.0] * len(pairs), kept, optimizations, model=str(model), args=configuration(recipe, given, optimizations),
        train_dataset=placeholder(), processing_class=AutoTokenizer.from_pretrained(model),
    )  # fmt: skip


def timed(trainer: Any, pairs: list[PairSize], batch: int, kept: Kept | None, clock: Any) -> dict[str, Any]:
    """Train and return the throughput, the time per step and the losses.

    Throughput is content tokens in the plain layout (without padding) per second, over all steps but the first.
    """
    from transformers import TrainerCallback

    marks: list[float] = []

    class Marks(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            marks.append(clock())

    trainer.add_callback(Marks())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    steps = len(marks)
    tokens = sum(pair.tokens for pair in pairs[batch : steps * batch])
    seconds = marks[-1] - marks[0]
    before = (kept.seconds if kept else 0.0) * (steps - 1) / steps
    return {
        "tokens_per_s_warm": round(tokens / seconds, 1),
        "tokens_per_s_cold": round(tokens / (seconds + before), 1),
        "step_seconds": round(seconds / (steps - 1), 3),
        "reference_seconds_per_step": round(before / (steps - 1), 3),
        "losses": losses,
    }


def ladder() -> dict[str, Any]:
    """Return the cases to measure: no optimization, each optimization alone, then one more at a time."""
    from ratchet.trainers.job.trl.dpo_trainer import Optimizations

    none = Optimizations(*[False] * 4)
    known, length = none._replace(known_reference=True), none._replace(by_length=True)
    two = known._replace(by_length=True)
    return {
        "ours, nothing switched on": none,
        "alone: known reference": known,
        "alone: batches by length": length,
        "alone: answers only at the head": none._replace(answers_only=True),
        "alone: shared prompt (with answers only)": none._replace(answers_only=True, shared_prompt=True),
        "known reference + by length": two,
        "known reference + by length + answers only": two._replace(answers_only=True),
        "all": Optimizations(),
    }


def measure(profile: str, size: Size, model: Path, work: Path, cases: dict[str, Any], clock: Any) -> dict[str, Any]:
    """Measure the plain script and each of the cases on one profile."""
    pairs = some_pairs(profile, size.steps * size.batch, size)
    given = shared(work, size.steps)
    results = {"plain script": timed(plain(model, pairs, given, size.batch), pairs, size.batch, None, clock)}
    for name, optimizations in cases.items():
        gc.collect()
        kept = Kept(clock)
        results[name] = timed(ours(model, pairs, given, size.batch, optimizations, kept), pairs, size.batch, kept, clock)
        click.echo(f"{profile}: {name}: {results[name]['tokens_per_s_cold']} tokens/s", err=True)
    first = results["plain script"]
    for result in results.values():
        for kind in ("cold", "warm"):
            result[f"over_plain_{kind}"] = round(result[f"tokens_per_s_{kind}"] / first[f"tokens_per_s_{kind}"], 2)
        result["loss_differs_at_most"] = max(abs(a - b) for a, b in zip(result["losses"], first["losses"], strict=True))
    return {"lengths": _lengths(pairs), "results": results}


def _lengths(pairs: list[PairSize]) -> dict[str, float]:
    answers = [len(answer) for pair in pairs for answer in pair[1:]]
    return {
        "pairs": len(pairs),
        "mean_prompt": round(sum(len(pair.prompt) for pair in pairs) / len(pairs), 1),
        "mean_answer": round(sum(answers) / len(answers), 1),
        "longest_answer": max(answers),
    }


def table(report: dict[str, Any]) -> str:
    """Return the report as a text table."""
    lines = []
    for profile, part in report["profiles"].items():
        lines += [f"{profile}: {part['lengths']}", f"{'':44}{'tokens/s cold':>14}{'warm':>9}{'x cold':>8}{'x warm':>8}{'loss differs':>14}"]
        for name, r in part["results"].items():
            lines.append(
                f"{name:44}{r['tokens_per_s_cold']:>14}{r['tokens_per_s_warm']:>9}{r['over_plain_cold']:>8}{r['over_plain_warm']:>8}"
                f"{r['loss_differs_at_most']:>14.1e}"
            )
    return "\n".join(lines)


@click.command()
@click.option("--out", default=RESULTS, type=click.Path(path_type=Path), help="File for the JSON report.")
@click.option("--toy", is_flag=True, help="Run in seconds with a tiny model, to test the script; the figures mean nothing.")
def main(out: Path, toy: bool) -> None:
    """Measure both profiles, print a table and write the JSON report."""
    import torch

    from ratchet.trainers.job.trl.dpo_trainer import Optimizations

    torch.set_num_threads(1)
    size = Size(hidden=32, layers=1, vocabulary=128, steps=2, batch=8, scale=0.1) if toy else Size()
    report: dict[str, Any] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "code": code_digest()[:12], "size": size._asdict(), "profiles": {}}
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "model", size)
        report["parameters"] = _parameters(model)
        for profile, cases in (("traces", ladder()), ("chat", {"all": Optimizations()})):
            report["profiles"][profile] = measure(profile, size, model, Path(folder), cases, time.process_time)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    click.echo(table(report))


def _parameters(model: Path) -> int:
    from transformers import AutoModelForCausalLM

    return sum(weight.numel() for weight in AutoModelForCausalLM.from_pretrained(model).parameters())


if __name__ == "__main__":
    main()
