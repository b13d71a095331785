"""The demo's data sets: base model training, user questions, and a golden set excluded from training. All depend only on seeds."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.contracts.errors import Permanent
from ratchet.flows.demo.task import ESTABLISHED_INTENTS, NEW_INTENTS, Request, requests
from ratchet.runtime.threads import threads_of

_LEARNT, _HINTS, _GOLDEN, _ASKED = 800, 6, 400, 900


@dataclass(frozen=True)
class DemoWorld:
    """Disjoint sets of requests. No golden question is in the base model's training data or asked by a user."""

    learnt: list[Request]
    """Training data of the base model: the established intents and a few examples of the new ones."""
    golden: list[Request]
    """The golden set for the gate."""
    asked: list[Request]
    """Questions that users ask, some of them repeatedly."""


def build_world() -> DemoWorld:
    """Build the three sets. The result is the same in every run."""
    learnt = requests(1000, _LEARNT, ESTABLISHED_INTENTS) + requests(1000, _HINTS, NEW_INTENTS)
    seen = {request.prompt for request in learnt}
    golden = [request for request in requests(999, 2 * _GOLDEN) if request.prompt not in seen][:_GOLDEN]
    seen |= {request.prompt for request in golden}
    asked = [request for request in requests(5, 3 * _ASKED) if request.prompt not in seen][:_ASKED]
    return DemoWorld(learnt, golden, asked)


def traffic(world: DemoWorld, n: int, seed: int) -> list[Request]:
    """Draw `n` user requests with replacement. Half of them come only from the more popular half of the questions."""
    draw = random.Random(seed)
    popular = world.asked[: len(world.asked) // 2]
    return [draw.choice(popular if draw.random() < 0.5 else world.asked) for _ in range(n)]


def write_golden(world: DemoWorld, path: Path) -> None:
    """Write the golden set to `path` as JSON lines with prompt, reference and slice."""
    rows = [{"prompt": r.prompt, "reference": r.reference, "slice": r.intent} for r in world.golden]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def start_base(world: DemoWorld, folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that trains the base model into `folder`/base. Its log is `folder`/base.log."""
    pairs, corpus = folder / "pairs.jsonl", folder / "corpus.txt"
    pairs.write_text("".join(json.dumps({"prompt": r.prompt, "answer": r.reference}) + "\n" for r in world.learnt), encoding="utf-8")
    corpus_requests: Sequence[Request] = requests(1, 4000)
    corpus.write_text("".join(f"{r.prompt}\n{r.reference}\n" for r in corpus_requests), encoding="utf-8")
    command = [sys.executable, "-m", "ratchet.trainers.job.tiny_model", str(pairs), str(corpus), str(folder / "base"), "--steps", "110"]
    with (folder / "base.log").open("wb") as log:
        return subprocess.Popen(command, env={**os.environ, **threads_of(1)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def base_ready(process: subprocess.Popen[bytes], folder: Path) -> Path:
    """Wait for the training process and return the base model's folder. Raises Permanent if the training failed."""
    if process.wait() != 0:
        raise Permanent(f"training of the base model failed; see {folder / 'base.log'}")
    return folder / "base"
