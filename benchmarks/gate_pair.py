"""What sampled answers are worth at the gate for two real models: the standard error of their difference by the number of answers.

Trains a small model twice, with another number of steps, and lets the product's `PairedEvaluator` compare the two on held-out questions.
Greedy answers and 1, 2 and 4 sampled answers per prompt are compared, each with the seeds of the product, which both models share, and with
seeds of the candidate's own. Sampled figures are means over several editions, that is, over other seeds on the same prompts.

`python -m benchmarks.gate_pair [--temperature 0.7] [--editions 4]`
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.gate_decisions import LEVEL
from benchmarks.recipe_cell import Answers
from benchmarks.recipe_worlds import TASKS, World, build_world
from contracts.data.datasets import HoldoutEdition
from contracts.evaluation import ChatAnswer, ChatRequest, EvalReport
from contracts.fakes import FakeRewards, MemoryArtifacts, fake_model
from contracts.ids import digest, digest_file
from contracts.loop import GateSettings
from gates.evaluate import PairedEvaluator
from gates.statistics import deviation_of
from trainers.job import tiny_model

ROOT = Path(__file__).parent
TASK, QUALITY, STEPS = "kubectl", 0.9, (120, 130)
SAMPLES = (1, 2, 4)


class OwnSeeds:
    """`ModelClient` that asks a model with other seeds than the gate wants."""

    def __init__(self, client: Answers) -> None:
        self.client = client

    def chat(self, requests: Sequence[ChatRequest], progress: Any = None) -> list[ChatAnswer]:
        """Answer all requests with changed seeds."""
        changed = [request.model_copy(update={"seed": None if request.seed is None else request.seed ^ 0x2A5A5A5A}) for request in requests]
        return self.client.chat(changed, progress)


def train(world: World, steps: int, out: Path) -> Answers:
    """Train a small model on the questions of the world."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    tokenizer = tiny_model.build_tokenizer(world.corpus, 768, 256)
    model = tiny_model.build_model(tokenizer, 128, 3, 256)
    rows = [tiny_model.encode(tokenizer, q.prompt, q.answer, 256) for q in world.learnt]
    tiny_model.pretrain(model, rows, tokenizer.pad_token_id, 1, steps, 64, 3e-3)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return Answers(out)


def figure(reports: Sequence[EvalReport]) -> dict[str, float]:
    """Return the mean difference and its mean standard error over the reports."""
    overall = [comparison for report in reports if (comparison := report.comparison("overall"))]
    errors = [deviation_of(one.difference) / one.n**0.5 for one in overall]
    return {
        "champion": round(fmean(one.champion for one in overall), 4),
        "candidate": round(fmean(one.candidate for one in overall), 4),
        "standard_error": round(fmean(errors), 5),
    }


@click.command()
@click.option("--temperature", default=0.7)
@click.option("--editions", default=4, help="Editions per figure, each with its own seeds.")
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "results" / "gate_pair.json")
def main(temperature: float, editions: int, out: Path) -> None:
    """Train, compare, print the figures and write them."""
    world = build_world(TASKS[TASK], QUALITY, 1)
    artifacts = MemoryArtifacts()
    buffer = io.BytesIO()
    held = world.test[:: max(1, len(world.test) // 600)]
    rows = [{"prompt": json.dumps([{"role": "user", "content": q.prompt}]), "reference": q.answer, "slice": q.slice} for q in held]
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    prompts = artifacts.put(buffer.getvalue())
    with tempfile.TemporaryDirectory() as folder:
        champion, candidate = (train(world, steps, Path(folder) / str(steps)) for steps in STEPS)

        def compared(settings: GateSettings, other: Any, times: int) -> dict[str, float]:
            editions = [
                HoldoutEdition(line="l", number=n, prompts=prompts, size=len(held), golden=None, normaliser=1, fraction=0.2)
                for n in range(1, times + 1)
            ]
            evaluator = PairedEvaluator(artifacts, FakeRewards(), settings)
            sides = (fake_model("champion"), champion), (fake_model("candidate"), other)
            return figure([evaluator.evaluate(edition, *sides, lambda *_: None) for edition in editions])

        found = {"greedy": compared(GateSettings(level=LEVEL), candidate, 1)}
        for samples in SAMPLES:
            settings = GateSettings(level=LEVEL, samples=samples, temperature=temperature)
            found[f"{samples} sampled, shared seeds"] = compared(settings, candidate, editions)
            found[f"{samples} sampled, own seeds"] = compared(settings, OwnSeeds(candidate), editions)
    for name, one in found.items():
        click.echo(f"{name}: {one['champion']:.3f} → {one['candidate']:.3f}, standard error {one['standard_error']:.4f}")
    names = [*(ROOT.parent / "gates" / f"{name}.py" for name in ("evaluate", "questions", "statistics")), Path(__file__)]
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "code": digest({path.name: digest_file(path) for path in names})[:12],
        "prompts": len(held),
        "temperature": temperature,
        "editions": editions,
        "steps": list(STEPS),
        "compared": found,
    }
    out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
