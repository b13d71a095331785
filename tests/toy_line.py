"""A line whose whole cycle takes seconds: a tiny model learns to answer every question with "yes" instead of "no".

The service, the servers, the training and the evaluation are real. The traffic from which the cycle learns is a file, so that it can be
replayed; the traffic of the rollout comes through the router.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from ratchet.contracts.serving import RouterHeader
from ratchet.flows.config.home import Home
from tests import command
from tests.command import ROOT
from tests.real_vllm import ARGUMENTS

_WORDS = ("red", "blue", "green", "house", "tree", "water", "stone", "light", "dark", "road", "sea", "bird", "fish", "cloud", "rain")
_WORDS += ("wind", "fire", "gold", "iron", "salt")
_QUESTIONS = tuple(f"Is the {one} near the {other}?" for at, one in enumerate(_WORDS) for other in _WORDS[at + 1 :])
TRAINING, GOLDEN = _QUESTIONS[:100], _QUESTIONS[100:160]
"""Disjoint questions: those of the recorded traffic, and those of the golden set."""

LINE = "toy"
"""Name of the line unless a test gives another."""

LOOP = """
[line]
name = "{name}"
served_model = "{name}"
[[sources]]
name = "replay"
kind = "jsonl"
path = "traces-{name}"
[[sources]]
name = "router"
kind = "receiver"
[[rewards]]
name = "exact_match"
[[rewards]]
name = "user_feedback"
[holdout]
golden = "golden.jsonl"
[snapshot]
references_are_answers = true
[probe]
prompts = 0
[training]
methods = ["sft"]
min_demonstrations = 20
max_restarts = 20
timeout = 600
[training.sft]
learning_rate = 5e-3
warmup_steps = 1
steps = 12
batch = 16
micro_batch = 16
max_length = 48
gradient_checkpointing = false
cpus = 1
save_every = 3
[serving.options]
threads = 1
[gate]
max_tokens = 4
[rollout]
steps = [50, 100]
margin = 0.9
error_margin = 0.9
latency_ratio = 50.0
min_requests = 3
min_seconds = 1
max_seconds = 900
maturity = 0
holdback = 10
dark = 300
[approvals.training]
mode = "auto"
[approvals.rollout]
mode = "auto"
[trigger]
new_traces = 50
min_interval = 1_000_000
"""


MODELS: Path | None = None
"""A folder that the test processes of a run share. `tests/conftest.py` sets it."""


def write_model(folder: Path) -> Path:
    """Write the tiny model that answers "no", and return its folder. A run of the tests trains it once: 20 s of CPU, mostly imports."""
    model = folder / "base"
    if MODELS is None:
        return _train(folder, model)
    MODELS.mkdir(exist_ok=True)
    with (MODELS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (MODELS / "base").exists():
            _train(MODELS, MODELS / "base.part").rename(MODELS / "base")
    return Path(shutil.copytree(MODELS / "base", model))


def _train(folder: Path, model: Path) -> Path:
    pairs, corpus = folder / "pairs.jsonl", folder / "corpus.txt"
    _write(pairs, [{"prompt": question, "answer": "no"} for question in _QUESTIONS])
    corpus.write_text("".join(f"{question}\nno\nyes\n" for question in _QUESTIONS))
    program = [
        sys.executable,
        "-m",
        "ratchet.trainers.job.tiny_model",
        str(pairs),
        str(corpus),
        str(model),
        "--steps",
        "30",
        "--threads",
        "1",
    ]
    subprocess.run(program, check=True, cwd=ROOT, capture_output=True)
    return model


def write_loop(folder: Path, name: str = LINE) -> Path:
    """Write the loop file of a line and its golden set, and return the path of the loop file. The traffic comes with `write_traffic`."""
    _write(folder / "golden.jsonl", [{"prompt": question, "reference": "yes"} for question in GOLDEN])
    (folder / f"traces-{name}").mkdir(exist_ok=True)
    loop = folder / f"{name}.toml"
    loop.write_text(LOOP.format(name=name))
    return loop


def write_traffic(folder: Path, name: str = LINE) -> None:
    """Write the recorded traffic of a line: a hundred answers "no", each with the right answer as its reference."""
    fixed = {"timestamp": "2026-10-01T00:00:00Z", "response": "no", "reference": "yes", "consent": True}
    rows = [{"id": str(number), "messages": question, **fixed} for number, question in enumerate(TRAINING)]
    part = folder / f"traces-{name}.part"
    _write(part, rows)
    part.rename(folder / f"traces-{name}" / "recorded.jsonl")


def adapted(loop: Path, program: Path | None, adapters: str = "own server") -> Path:
    """Let the line train adapters and serve them as such: with vLLM if `program` names it, otherwise with the embedded server."""
    text = (
        loop.read_text()
        .replace("learning_rate = 5e-3", "learning_rate = 2e-2\nlora = { rank = 8, alpha = 16 }")
        .replace("steps = 12", "steps = 20")
    )
    options = "[serving.options]\nthreads = 1\n"
    vllm = f'kind = "vllm"\n[serving.options]\nexecutable = "{program}"\narguments = {json.dumps(ARGUMENTS)}\n'
    loop.write_text(text.replace(options, f'[serving]\nadapters = "{adapters}"\n' + (vllm if program else options)))
    return loop


def answer(home: Home, question: str) -> str:
    """Ask the line through its router."""
    port = json.loads((home.serving(LINE) / "router" / "port.json").read_bytes())["port"]
    body = {"model": LINE, "messages": [{"role": "user", "content": question}], "max_tokens": 4, "temperature": 0}
    reply = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=60, trust_env=False)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def ratchet(home: Home, *args: object) -> str:
    """Run a command that must succeed, and return its output."""
    done = command.ratchet(*map(str, args), home=home.root, timeout=900)
    assert done.returncode == 0, f"{args}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def serving(home: Home, loop: Path, log: Path) -> Iterator[None]:
    """Serve the line until the block ends."""
    with log.open("ab") as out:
        environment = command.environment(home.root)
        service = subprocess.Popen([*command.RATCHET, "serve", str(loop)], env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        yield
    finally:
        service.terminate()
        service.wait(120)
        ratchet(home, "serve", "--stop", loop)


class Users:
    """People who ask a line through its router and like every answer. What is not accepted is sent again.

    `home` and `line` name the line, `token` is a credential that may send feedback. `is_open` tells whether they ask at present.
    """

    def __init__(self, home: Home, line: str, token: str, is_open: Callable[[], bool]) -> None:
        self._home, self._line, self._token, self._is_open = home, line, token, is_open
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.answered: list[str] = []
        """The router's trace headers of the answers."""

    def __enter__(self) -> Users:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(120)

    def _ask(self) -> None:
        client, number = httpx.Client(timeout=30, trust_env=False), 0
        while not self._over.wait(0.25):
            if not self._is_open():
                continue
            number += 1
            headers = {RouterHeader.SESSION: f"session-{number}", RouterHeader.USER: f"user-{number}"}
            body = {"model": self._line, "messages": [{"role": "user", "content": TRAINING[number % 100]}], "max_tokens": 4}
            with contextlib.suppress(httpx.HTTPError, OSError, ValueError, TypeError, KeyError):
                ports = json.loads((self._home.serving(self._line) / "router" / "port.json").read_bytes())
                reply = client.post(f"http://127.0.0.1:{ports['port']}/v1/chat/completions", json=body, headers=headers)
                if reply.status_code == 200:
                    trace = reply.headers[RouterHeader.TRACE]
                    self.answered.append(trace)
                    self._rate(client, trace, f"user-{number}")

    def _rate(self, client: httpx.Client, trace: str, user: str) -> None:
        body = like(trace, user)
        while not self._over.is_set():
            with contextlib.suppress(httpx.HTTPError, OSError, ValueError):
                port = json.loads((self._home.receiver_port(self._line)).read_bytes())
                headers = {"authorization": f"Bearer {self._token}"}
                if client.post(f"http://127.0.0.1:{port}/v1/logs", json=body, headers=headers).status_code == 200:
                    return
            self._over.wait(0.2)


def like(trace: str, user: str) -> dict[str, object]:
    """Return an OTLP/HTTP request of logs in which the user of a trace likes its answer. `trace` is the router's header."""
    trace_id, span_id = trace.split(":")
    values: dict[str, dict[str, object]] = {
        "gen_ai.evaluation.name": {"stringValue": "user_feedback"},
        "gen_ai.evaluation.score.value": {"doubleValue": 1.0},
        "user.id": {"stringValue": user},
    }
    record = {
        "timeUnixNano": str(time.time_ns()),
        "eventName": "gen_ai.evaluation.result",
        "traceId": trace_id,
        "spanId": span_id,
        "attributes": [{"key": key, "value": value} for key, value in values.items()],
    }
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
