"""How often the gate passes a better and an equal candidate with one and with two sampled answers per prompt.

The product's `PairedEvaluator` and its checks judge simulated models: it builds the requests with their seeds, gets the answers, and
compares the means per prompt. The models have the probabilities of a right answer of `benchmarks/gate_variance.py`. The seed of a request
alone decides the champion's answer, so the evaluations of an edition share it. The candidate's answers are independent of it, so the
figures contain no gain from common random numbers. The prompts are in ten slices.

`python -m benchmarks.gate_samples [--world fixed] [--worlds 400] [--seed 1]`
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.gate_decisions import LEVEL, LOOP
from benchmarks.gate_variance import PROMPTS, WORLDS, candidate, champion
from ratchet.contracts.data.datasets import HoldoutEdition
from ratchet.contracts.evaluation import ChatAnswer, ChatRequest, Result
from ratchet.contracts.fakes import FakeRewards, MemoryArtifacts, fake_model
from ratchet.contracts.ids import digest, digest_file
from ratchet.contracts.loop import GateSettings
from ratchet.flows.core.triggers import evaluation_level
from ratchet.gates.checks import Quality, Slices
from ratchet.gates.evaluation.evaluator import PairedEvaluator

ROOT = Path(__file__).parent
SAMPLES = (1, 2)
SLICES = 10
GAIN = 0.05
BETTER = 2
"""Better candidates per edition."""


class SimulatedModel:
    """`ModelClient` that answers prompt n right with probability `right[n]`. The same request gets the same answer."""

    def __init__(self, right: np.ndarray, number: int) -> None:
        self.right = right
        self.number = number

    def chat(self, requests: Sequence[ChatRequest], progress: Any = None) -> list[ChatAnswer]:  # noqa: ARG002
        """Answer all requests: yes is right."""
        prompts = np.array([int(request.messages[0]["content"]) for request in requests])
        chance = _uniform(np.array([request.seed for request in requests], dtype=np.uint64), self.number)
        return [_RIGHT if one else _WRONG for one in chance < self.right[prompts]]


_RIGHT, _WRONG = ChatAnswer(text="yes"), ChatAnswer(text="nay")


def _uniform(seeds: np.ndarray, number: int) -> np.ndarray:
    """Return numbers in [0, 1) that depend on the seed and the model (the finaliser of SplitMix64)."""
    mixed = seeds + np.uint64(number * 0x9E3779B97F4A7C15 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(31))) / 2.0**64


class Bench:
    """The holdout, and the gate with one setting of `gate.samples`."""

    def __init__(self) -> None:
        self.artifacts = MemoryArtifacts()
        rows = [
            {"prompt": json.dumps([{"role": "user", "content": str(n)}]), "reference": "yes", "slice": str(n % SLICES)}
            for n in range(PROMPTS)
        ]
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), buffer)
        self.prompts = self.artifacts.put(buffer.getvalue())

    def judged(
        self, number: int, samples: int, old: np.ndarray, new: np.ndarray, place: int, level: float = LEVEL
    ) -> tuple[bool, bool, float]:
        """Return whether the candidate passes the check `quality`, whether `slices` holds or fails it, and the share of the prompts asked.

        `level` is that of the evaluation.
        """
        settings = GateSettings(samples=samples, temperature=1.0)
        edition = HoldoutEdition(line="l", number=number, prompts=self.prompts, size=PROMPTS, golden=None, normaliser=1, fraction=0.2)
        sides = [(fake_model(str(one)), SimulatedModel(right, one)) for one, right in ((0, old), (1 + place, new))]
        report = PairedEvaluator(self.artifacts, FakeRewards(), settings).evaluate(edition, sides[0], sides[1], lambda *_: None, level)
        del self.artifacts.content[report.answers]
        held = Slices(settings).check(report).result is not Result.PASS
        return Quality(settings).check(report).result is Result.PASS, held, report.asked / PROMPTS


def figures(bench: Bench, draw: np.random.Generator, world: str, worlds: int) -> dict[str, dict[str, float]]:
    """Return by number of answers: how often an equal candidate passes an edition, a better one passes, and slices hold the better one.

    Also the mean shares of the prompts that were asked. An equal candidate that passes counts as a promotion, but the champion stays.
    """
    found: dict[int, list[tuple[float, ...]]] = {samples: [] for samples in SAMPLES}
    for number in range(1, worlds + 1):
        old = champion(draw, world, PROMPTS)
        equal = [candidate(draw, world, 0.0, old) for _ in range(LOOP.holdout.rotate_after)]
        better = [candidate(draw, world, GAIN, old) for _ in range(BETTER)]
        for samples, rows in found.items():
            history: list[bool] = []
            asked = []
            for place, new in enumerate(equal):
                passed, _, share = bench.judged(number, samples, old, new, place, evaluation_level(LOOP, history))
                history.append(passed)
                asked.append(share)
            gained = [bench.judged(number, samples, old, new, len(equal) + place) for place, new in enumerate(better)]
            rows.append((float(any(history)), *np.mean(gained, axis=0), float(np.mean(asked))))
    names = ("equal", "better", "better_held_by_slices", "asked_of_better", "asked_of_equal")
    return {
        str(samples): {name: round(float(share), 4) for name, share in zip(names, np.mean(rows, axis=0), strict=True)}
        for samples, rows in found.items()
    }


@click.command()
@click.option("--world", "chosen", type=click.Choice(WORLDS), multiple=True, default=WORLDS, help="Simulated world; default: all.")
@click.option("--worlds", default=400, help="Simulated editions per figure.")
@click.option("--seed", default=1)
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "results" / "gate_samples.json")
def main(chosen: Sequence[str], worlds: int, seed: int, out: Path) -> None:
    """Simulate, print the figures and add them to the file. Figures of other code are dropped from it."""
    names = ("boundaries", "checks", "evaluate", "looks", "questions", "slices", "statistics")
    paths = [*(ROOT.parent / "gates" / f"{name}.py" for name in names), ROOT / "gate_variance.py"]
    code = digest({path.name: digest_file(path) for path in paths})[:12]
    stored = json.loads(out.read_text()) if out.exists() else {}
    found = stored["samples"] if stored.get("code") == code else {}
    bench = Bench()
    for world in chosen:
        shares = figures(bench, np.random.default_rng([seed, WORLDS.index(world)]), world, worlds)
        for samples, one in shares.items():
            click.echo(
                f"{world}: {samples} answers: equal {one['equal']:.1%} per edition, better by {GAIN:g} {one['better']:.1%}, "
                f"held by slices {one['better_held_by_slices']:.1%}, asked {one['asked_of_equal']:.0%} and {one['asked_of_better']:.0%}"
            )
        found[world] = {"editions": worlds, "answers": shares}
        result = {"date": datetime.now(UTC).date().isoformat(), "code": code, "samples": found}
        out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
