"""A small model that answers every question with text learns to call the right tool, through the whole cycle of the product."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command import ROOT, ratchet

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

TEMPLATE = (
    "{% for t in tools or [] %}<|user|>tool {{ t['function']['name'] }}{% endfor %}"
    "{% for m in messages %}{% if m['role'] == 'assistant' %}<|assistant|>{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}<tool_call>{{ {'name': c['function']['name'], 'arguments': c['function']['arguments']} | tojson }}"
    "</tool_call>{% endfor %}<|end|>{% else %}<|user|>{{ m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PARAMETERS = {"type": "object", "properties": {"on": {"type": "boolean"}}}
TOOLS = [{"type": "function", "function": {"name": name, "description": "", "parameters": PARAMETERS}} for name in ("lamp", "fan")]
PLACES = ("kitchen", "hall", "garden", "cellar", "attic", "office", "garage", "porch", "shed", "bath")
WORDS = ("please", "now", "today", "quickly", "again", "tonight", "soon", "gently", "first", "later")


def asked() -> list[tuple[str, list[dict[str, Any]]]]:
    """Questions with the one call that is right."""
    return [
        (f"turn {state} the {tool} in the {place} {word}", [{"name": tool, "arguments": {"on": state == "on"}}])
        for tool in ("lamp", "fan")
        for state in ("on", "off")
        for place in PLACES
        for word in WORDS
    ]


LOOP = """
[line]
name = "home"
served_model = "home"
[[sources]]
name = "replay"
kind = "jsonl"
path = "traces"
[[rewards]]
name = "tool_call_match"
[holdout]
golden = "golden.jsonl"
[snapshot]
references_are_answers = true
[probe]
prompts = 10
samples = 2
max_tokens = 24
[training]
methods = ["sft"]
min_demonstrations = 20
timeout = 600
[training.sft]
learning_rate = 4e-3
warmup_steps = 2
steps = 60
batch = 16
micro_batch = 16
max_length = 96
gradient_checkpointing = false
cpus = 1
[serving.options]
threads = 1
[gate]
max_tokens = 32
[approvals.training]
mode = "auto"
[approvals.rollout]
expires = 1
"""


def write_model(folder: Path) -> Path:
    """Train the tiny model that answers "sorry" and knows the words of tool calls, with a template that renders tools."""
    pairs, corpus, model = folder / "pairs.jsonl", folder / "corpus.txt", folder / "base"
    pairs.write_text("".join(json.dumps({"prompt": question, "answer": "sorry"}) + "\n" for question, _ in asked()))
    calls = {f"<tool_call>{json.dumps(call[0])}</tool_call>" for _, call in asked()}
    corpus.write_text("\n".join([*(f"{question}\nsorry\ntool lamp\ntool fan" for question, _ in asked()), *sorted(calls) * 50]))
    command = [
        sys.executable,
        "-m",
        "ratchet.trainers.job.tiny_model",
        str(pairs),
        str(corpus),
        str(model),
        "--steps",
        "30",
        "--hidden",
        "64",
    ]
    subprocess.run([*command, "--layers", "2"], check=True, cwd=ROOT, capture_output=True)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    return model


def test_a_line_learns_to_call_tools(tmp_path: Path) -> None:
    home = tmp_path / "home"
    rows = asked()
    golden, traffic = rows[::7], [row for place, row in enumerate(rows) if place % 7]
    lines = [{"prompt": question, "tools": TOOLS, "reference": calls} for question, calls in golden]
    (tmp_path / "golden.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "traces").mkdir()
    fixed = {"timestamp": "2026-10-01T00:00:00Z", "response": "sorry", "consent": True, "tools": TOOLS}
    traces = [{"id": str(n), "messages": question, "reference": json.dumps(calls), **fixed} for n, (question, calls) in enumerate(traffic)]
    (tmp_path / "traces" / "recorded.jsonl").write_text("".join(json.dumps(row) + "\n" for row in traces))
    loop = tmp_path / "home.toml"
    loop.write_text(LOOP)

    def run(*args: str) -> str:
        done = ratchet(*args, home=home, timeout=800, HF_HUB_OFFLINE="1")
        assert done.returncode == 0, f"{args}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    try:
        run("adopt", str(loop), str(write_model(tmp_path)), "--by", "ada")
        ended = json.loads(run("run", str(loop), "--json"))
        rows_of = [row for row in json.loads(run("explain", "home/1", "--json")) if row["kind"] == "done"]
        report = next(row for row in rows_of if row["key"] == "evaluate")["data"]["report"]
        overall = report["comparisons"][0]
        assert overall["champion"] == 0, ended
        assert overall["candidate"] > 0.5, ended
    finally:
        run("serve", str(loop), "--stop")
