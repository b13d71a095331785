"""Would KTO on rated answers without a pair add to what SFT learns, and which method wins without corrections?

The data are the product's own: the snapshot and the training set of one cycle of traffic (benchmarks/recipe_cell.py). A plain loop trains
the same base model on the demonstrations (SFT), on all rated answers (KTO: Ethayarajh et al. 2024, arXiv:2402.01306), or on both, with the
same number of steps and the same draws of demonstrations. Of two weights of KTO beside SFT, the one that is better on tuning questions
counts. "thumbs only" leaves out corrections and references, so that demonstrations are answers that users liked.

`python -m benchmarks.kto [--tasks NAME...] [--seeds N] [--out FILE]` appends rows and prints a table. Rows that exist are not
computed again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import polars as pl
import torch
from torch.nn.functional import log_softmax

from benchmarks.recipe_cell import Bench, base, measured_code, right, traffic
from benchmarks.recipe_grid import Cell
from ratchet.contracts.data.records import Tier
from ratchet.materializer.lake.schemas import read_parquet

RESULTS = Path(__file__).resolve().parent / "results" / "kto.jsonl"
STEPS, BATCH, RATE, WARMUP, BETA = 240, 16, 4e-4, 12, 0.1
WEIGHTS = (0.1, 0.5)
"""Weights of the KTO term beside SFT that are tried."""
SOURCES = ("all evidence", "thumbs only")


class Rated(NamedTuple):
    """An answer, its prompt, and whether its users liked it (1) or not (0)."""

    prompt: str
    answer: str
    liked: float


class Row(NamedTuple):
    """Token ids, and the index at which the answer begins."""

    ids: list[int]
    at: int


def evidence(bench: Bench, model: Path, cell: Cell, source: str) -> tuple[list[Rated], list[Rated]]:
    """Return the demonstrations of the product's training set, and all rated answers to training prompts."""
    data, _ = bench.dataset(model, traffic(bench.world, model, cell.flips, cell.chance))
    shown = read_parquet(bench.artifacts.get(data.demonstrations))
    if source == "thumbs only":
        shown = shown.filter(pl.col("source") == Tier.FEEDBACK.value)
    snapshot = json.loads(bench.artifacts.get(bench.artifacts.resolve("snapshot") or ""))
    samples = read_parquet(bench.artifacts.get(snapshot["samples"])).filter(pl.col("origin") != "correction")
    if data.development:
        held = read_parquet(bench.artifacts.get(data.development))["prompt_id"].to_list()
        samples = samples.filter(~pl.col("prompt_id").is_in(held))
    votes = samples.select("prompt", "answer", pl.col("parts").map_elements(_vote, return_dtype=pl.Float64).alias("liked")).drop_nulls()
    means = votes.group_by("prompt", "answer", maintain_order=True).agg(pl.col("liked").mean())
    return (
        [Rated(_text(prompt), answer, 1.0) for prompt, answer in shown.select("prompt", "answer").iter_rows()],
        [Rated(_text(prompt), answer, float(liked > 0.5)) for prompt, answer, liked in means.iter_rows() if liked != 0.5],
    )


def _vote(parts: str) -> float | None:
    vote = json.loads(parts).get("user_feedback")
    return None if vote is None else float(vote)


def _text(prompt: str) -> str:
    return str(json.loads(prompt)[-1]["content"])


def encoded(tokenizer: Any, rows: Sequence[Rated]) -> list[Row]:
    """Return the rows as the chat template renders them."""
    found = []
    for row in rows:
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": row.prompt}], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        found.append(Row([*asked, *tokenizer.encode(row.answer), tokenizer.eos_token_id], len(asked)))
    return found


def logps(model: Any, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each answer in nats and its number of tokens, each of shape [rows]."""
    width = max(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids + [0] * (width - len(row.ids)) for row in rows])
    mask = torch.tensor([[float(row.at <= place < len(row.ids)) for place in range(width)] for row in rows])
    seen = torch.tensor([[int(place < len(row.ids)) for place in range(width)] for row in rows])
    scores = log_softmax(model(input_ids=ids, attention_mask=seen).logits[:, :-1].float(), dim=-1)
    token = scores.gather(2, ids[:, 1:, None])[:, :, 0] * mask[:, 1:]
    return token.sum(1), mask.sum(1)


def kto(model: Any, start: Any, rows: Sequence[Row], liked: Sequence[float], balance: float) -> torch.Tensor:
    """Return the KTO loss of a batch, a scalar. `balance` is the weight of a disliked answer."""
    with torch.no_grad():
        reference = logps(start, rows)[0]
        mixed = [Row(one.ids[: one.at] + other.ids[other.at :], one.at) for one, other in zip(rows, [*rows[1:], rows[0]], strict=True)]
        distance = (logps(model, mixed)[0] - logps(start, mixed)[0]).mean().clamp(min=0)
    gain, wanted = logps(model, rows)[0] - reference, torch.tensor(liked)
    good, bad = 1 - torch.sigmoid(BETA * (gain - distance)), 1 - torch.sigmoid(BETA * (distance - gain))
    return torch.where(wanted > 0, good, balance * bad).mean()


def train(folder: Path, shown: Sequence[Rated], rated: Sequence[Rated], weight: float, seed: int, out: Path) -> Path:
    """Train a copy of the model in `folder`, on demonstrations if there are any, and on rated answers if `weight` is above 0."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, start = (AutoModelForCausalLM.from_pretrained(folder) for _ in range(2))
    demonstrations, answers = encoded(tokenizer, shown), encoded(tokenizer, rated)
    dislikes = sum(row.liked == 0 for row in rated)
    balance = (len(rated) - dislikes) / dislikes if dislikes else 1.0
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    first, second = (torch.Generator().manual_seed(2 * seed + place) for place in (0, 1))
    for step in range(STEPS):
        loss = torch.zeros(())
        if demonstrations:
            batch = [demonstrations[i] for i in torch.randint(len(demonstrations), (BATCH,), generator=first)]
            total, tokens = logps(model, batch)
            loss = loss - total.sum() / tokens.sum()
        if weight:
            places = torch.randint(len(answers), (BATCH,), generator=second).tolist()
            loss = loss + weight * kto(model, start, [answers[i] for i in places], [rated[i].liked for i in places], balance)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        share = min(1.0, (step + 1) / WARMUP, (STEPS - step) / (0.2 * STEPS))
        for group in optimiser.param_groups:
            group["lr"] = RATE * share
        optimiser.step()
        optimiser.zero_grad()
    shutil.copytree(folder, out)
    model.save_pretrained(out)
    return out


def rows_of(cell: Cell, folder: Path, known: set[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return one row for each source of evidence that is not in `known`."""
    place, found = base(cell, folder), []
    for source in SOURCES:
        if (cell.task, cell.seed, source) in known:
            continue
        bench = Bench(cell, folder / "cells" / f"{cell.name}-{source.split()[0]}")
        shown, rated = evidence(bench, place / "model", cell, source)
        runs: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for name, told, weights in (("sft", shown, (0.0,)), ("sft + kto", shown, WEIGHTS), ("kto", [], (1.0,))):
            for weight in weights:
                out = train(place / "model", told, rated, weight, cell.seed, bench.folder / f"{name}-{weight}")
                runs[name].append((sum(right(out, bench.world.tuning)), fmean(right(out, bench.world.test))))
        found.append(
            {
                "task": cell.task,
                "seed": cell.seed,
                "source": source,
                "base": fmean(json.loads((place / "base.json").read_bytes())),
                "demonstrations": len(shown),
                "liked": sum(row.liked == 1 for row in rated),
                "disliked": sum(row.liked == 0 for row in rated),
                "code": measured_code()[:12],
                **{name: max(tried)[1] for name, tried in runs.items()},
            }
        )
        shutil.rmtree(bench.folder)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table: mean accuracies by task and source, and the gain of KTO beside SFT with its standard error."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["source"], row["task"]].append(row)
        groups[row["source"], "all"].append(row)
    names = ("base", "sft", "sft + kto", "kto")
    lines = ["| evidence | task | cells | " + " | ".join(names) + " | KTO beside SFT |", "|---" * 8 + "|"]
    for (source, task), found in sorted(groups.items()):
        gains = [row["sft + kto"] - row["sft"] for row in found]
        error = f" ± {stdev(gains) / len(gains) ** 0.5:.3f}" if len(gains) > 1 else ""
        cells = [source, task, str(len(found)), *(f"{fmean(row[name] for row in found):.3f}" for name in names)]
        lines.append("| " + " | ".join([*cells, f"{fmean(gains):+.3f}{error}"]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=["kubectl", "sql", "route", "extract", "sort"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    folder = Path(tempfile.mkdtemp(prefix="kto-"))
    try:
        for seed in range(21, 21 + given.seeds):
            for task in given.tasks:
                new = rows_of(Cell(task, 0.6, 0.15, seed), folder, {(row["task"], row["seed"], row["source"]) for row in rows})
                rows += new
                with given.out.open("a") as file:
                    file.write("".join(json.dumps(row) + "\n" for row in new))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(table(rows))


if __name__ == "__main__":
    main()
