"""A whole cycle whose judge is the reward of GRPO: the gate proves the gain on references, and no file has the key of the judge."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.jobs.training import Method
from ratchet.contracts.steps import EvaluateResult, State
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from tests import command, toy_line
from tests.command import ROOT
from tests.judge_stub import Stub, grade, parts, serving

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(1800)]

KEY = "sk-secret-of-the-judge"
JUDGE = """
[[rewards]]
name = "judge"
[rewards.options]
url = "{url}"
model = "m"
key_file = "{key}"
probes = 50
max_flips = 0.06
min_labels = 20
in_jobs = {in_jobs}
"""
GRPO = """[training.grpo]
learning_rate = 5e-3
warmup_steps = 1
steps = 16
prompts_per_step = 4
generations = 8
micro_batch = 32
max_completion = 4
gradient_checkpointing = false
cpus = 1
save_every = 8
"""


def _undecided(folder: Path) -> Path:
    """Write a model that answers "yes" to a third of the questions at temperature 1, and return its folder."""
    answers = [(question, word) for question in (*toy_line.TRAINING, *toy_line.GOLDEN) for word in ("no", "no", "yes")]
    (folder / "pairs.jsonl").write_text("".join(json.dumps({"prompt": one, "answer": word}) + "\n" for one, word in answers))
    (folder / "corpus.txt").write_text("".join(f"{one}\n{word}\n" for one, word in answers))
    places = [str(folder / name) for name in ("pairs.jsonl", "corpus.txt", "base")]
    program = [sys.executable, "-m", "ratchet.trainers.job.tiny_model", *places, "--steps", "30", "--threads", "1"]
    subprocess.run(program, check=True, cwd=ROOT, capture_output=True)
    return folder / "base"


def _line(folder: Path, url: str, key: Path, in_jobs: bool) -> Path:
    """Write a line whose traffic has ratings, and a reference for every fifth question, which is too few for GRPO."""
    loop = toy_line.write_loop(folder)
    text = loop.read_text()
    before, rest = text.split("[training.sft]\n", 1)
    text = before.replace('["sft"]', '["grpo"]') + GRPO + "[serving.options]" + rest.split("[serving.options]", 1)[1]
    text = text.replace("[probe]\nprompts = 0\n", "[probe]\nprompts = 40\nmax_tokens = 4\n").replace("references_are_answers = true\n", "")
    text = text.replace('[approvals.rollout]\nmode = "auto"', '[approvals.rollout]\nmode = "person"\nexpires = 3')
    loop.write_text(text + JUDGE.format(url=url, key=key, in_jobs=str(in_jobs).lower()))
    said = [(question, ("no", "yes")[at % 2]) for at, question in enumerate(toy_line.TRAINING)]
    fixed = {"timestamp": "2026-10-01T00:00:00Z", "consent": True}
    rows = [
        {"id": str(at), "messages": question, "response": answer, "feedback": int(answer == "yes"), **fixed}
        | ({"reference": "yes"} if at % 10 < 2 else {})
        for at, (question, answer) in enumerate(said)
    ]
    (folder / f"traces-{toy_line.LINE}" / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return loop


def test_a_cycle_trains_against_a_judge_that_agrees_with_people(tmp_path: Path) -> None:
    home, model, key = Home(tmp_path / "home"), _undecided(tmp_path), tmp_path / "judge.key"
    key.write_text(KEY)
    with serving(Stub(lambda body: grade(5 if parts(body)["answer"].strip() == "yes" else 1), key=KEY)) as stub:
        loop = _line(tmp_path, stub.url, key, in_jobs=False)
        toy_line.ratchet(home, "adopt", loop, model, "--by", "ada")
        toy_line.ratchet(home, "ingest", loop)
        told: dict[str, Any] = json.loads(toy_line.ratchet(home, "plan", loop, "--json"))
        assert told["method"] == "none"
        assert "set in_jobs for a judge that is believed" in json.dumps(told)

        loop = _line(tmp_path, stub.url, key, in_jobs=True)
        shown = " ".join(toy_line.ratchet(home, "plan", loop).split())
        assert "the job asks judge about the answers of each step that no stronger reward decides" in shown
        command.ratchet("run", loop, "--no-ingest", "--wait", "900", home=home.root, timeout=1200)
        cycle = Installation(home).cycle(toy_line.LINE, 1)
        toy_line.ratchet(home, "serve", "--stop", loop)
    assert cycle is not None
    assert cycle.state is State.EXPIRED, cycle.state  # the gate has passed it, and nobody approved the rollout
    assert cycle.plans[0].method is Method.GRPO
    report = cycle.result(EvaluateResult).report
    overall = report.comparison("overall")
    assert overall is not None
    assert overall.difference.low > 0.3, overall
    assert "judge_tokens" in toy_line.ratchet(home, "explain", f"{toy_line.LINE}/1", "--json")
    for path in tmp_path.rglob("*"):
        assert path == key or not path.is_file() or KEY.encode() not in path.read_bytes(), f"{path} has the key"
