"""The files of the quickstart: a loop file, a deliberately bad one, traces with feedback, and questions for the gate.

The traces are those of an application with an assistant that knows six of eight intents. Everything but the times depends only on a seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import ConfigError
from ratchet.flows.demo.task import NEW_INTENTS, Request, requests
from ratchet.flows.demo.world import DemoWorld, build_world, traffic, write_golden

LOOP, BAD_LOOP, GOLDEN, TRACES = "loop.toml", "bad-loop.toml", "golden.jsonl", "traces"
_COUNT, _SEED, _DAYS = 900, 3, 7
_RIGHT = {True: 0.1, False: 0.9}
"""Whether the intent is new -> share of right answers."""
_RATED, _FLIPPED, _CORRECTED, _REFERENCED, _CONSENT = 0.6, 0.1, 0.3, 0.35, 0.95
BAD_RECIPE = {
    'methods = ["sft", "dpo"]': 'methods = ["dpo"]',
    "losses = { sigmoid = 0.2, sft = 1.0 }\nmost_steps = 250": "losses = { sigmoid = 1.0 }\nlearning_rate = 3e-3\nsteps = 120",
}
"""What the bad loop file changes: only the preference loss, at a far too high learning rate, for a fixed number of steps."""


def loop_text() -> str:
    """Return the loop file of the example."""
    return Path(__file__).with_name("example.toml").read_text(encoding="utf-8")


def bad_loop_text() -> str:
    """Return the loop file with the bad recipe."""
    text = loop_text()
    for good, bad in BAD_RECIPE.items():
        assert good in text, good
        text = text.replace(good, bad)
    return text


def write_example(folder: Path, now: datetime) -> dict[Path, str]:
    """Write the files into `folder` and return what each one is. The traces are of the seven days before `now`.

    Raises ConfigError if the folder exists and is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not empty; name a new folder")
    (folder / TRACES).mkdir(parents=True)
    world = build_world()
    made = {
        folder / LOOP: "the loop file: the settings of the model line",
        folder / BAD_LOOP: "the same with a bad training recipe, for the second cycle",
        folder / TRACES / "assistant.jsonl": f"{_COUNT} traces of an application, with ratings, corrections and references",
        folder / GOLDEN: f"{len(world.golden)} questions with their answers, which only the gate uses",
    }
    (folder / LOOP).write_text(loop_text(), encoding="utf-8")
    (folder / BAD_LOOP).write_text(bad_loop_text(), encoding="utf-8")
    lines = (json.dumps(record) + "\n" for record in example_traces(world, now))
    (folder / TRACES / "assistant.jsonl").write_text("".join(lines), encoding="utf-8")
    write_golden(world, folder / GOLDEN)
    return made


def example_traces(world: DemoWorld, now: datetime) -> Iterator[dict[str, Any]]:
    """Yield the records of the traces, oldest first, in the format of docs/howto/own-traces.md."""
    draw = random.Random(_SEED)
    others = requests(17, 400)
    start = now - timedelta(days=_DAYS)
    for number, asked in enumerate(traffic(world, _COUNT, _SEED)):
        right = draw.random() < _RIGHT[asked.intent in NEW_INTENTS]
        user = draw.randrange(200)
        record: dict[str, Any] = {
            "id": f"t-{number:04d}",
            "timestamp": (start + timedelta(days=_DAYS) * number / _COUNT).isoformat(),
            "user_id": f"user-{user:03d}",
            "session_id": f"user-{user:03d}-{draw.randrange(6)}",
            "messages": [{"role": "user", "content": asked.prompt}],
            "response": asked.reference if right else _wrong(asked, others, draw),
            "model": "kubectl-assistant",
            "latency_ms": 200 + draw.randrange(300),
            "consent": random.Random(f"consent {user}").random() < _CONSENT,
            "slice": asked.intent,
        }
        if draw.random() < _RATED:
            record["feedback"] = int(right == (draw.random() >= _FLIPPED))
        if not right and draw.random() < _CORRECTED:
            record["correction"] = asked.reference
        if draw.random() < _REFERENCED:
            record["reference"] = asked.reference
        yield record


def _wrong(asked: Request, others: list[Request], draw: random.Random) -> str:
    """Return an answer with a mistake that such a model makes: the command of another request."""
    return next(one.reference for one in iter(lambda: draw.choice(others), None) if one.reference != asked.reference)
