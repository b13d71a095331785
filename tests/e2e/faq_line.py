"""A line that answers questions about where things are, and whose answers are all wrong, for tests of reviewers and teachers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

LOOP = """
[line]
name = "faq"
served_model = "faq"
[[sources]]
name = "log"
kind = "jsonl"
path = "traces"
[[rewards]]
name = "exact_match"
[[rewards]]
name = "user_feedback"
[holdout]
fraction = 0.2
[trigger]
new_traces = 1
"""
TEACHER = """
[teacher]
url = "{url}"
model = "big"
key_env = "TEACHER_KEY"
region = "eu"
regions = ["eu"]
input_price = 2.0
output_price = 8.0
max_requests = 500
max_cost = 5.0
max_tokens = 100
[teacher.terms]
text = "https://provider.example/terms"
accepted_by = "Ada Example"
accepted_on = 2026-01-15
"""


def right(question: str) -> str:
    """The right answer to a question: forms lie in drawers, and keys hang on hooks."""
    number = int(re.findall(r"\d+", question)[0])
    return f"in drawer {number}" if "form" in question else f"on hook {number}"


def question(number: int, kind: str) -> str:
    """A question that resembles no other one."""
    place = ("harbour", "castle", "meadow", "tunnel", "station", "library", "airport", "garden")[number % 8]
    return f"{kind} {number * 7919} of the {place}, {'abcdefghijklmnop'[number % 16] * 12}: where do I find this {kind}?"


def traffic(folder: Path, third_party: bool | None = True) -> None:
    """Write questions of two slices. Sixty of each have a logged right answer, sixty have none, and every answer is disliked."""
    rows: list[dict[str, Any]] = []
    for kind in ("form", "key"):
        for number in range(120):
            asked = question(number, kind)
            row = {"id": f"{kind}{number}", "timestamp": f"2026-10-01T00:{number % 60:02d}:00Z", "user_id": f"u{kind}{number}"}
            row |= {"messages": [{"role": "user", "content": asked}], "response": "in the cellar", "feedback": 0, "slice": kind}
            row |= {"consent": True} | ({} if third_party is None else {"consent_third_party": third_party})
            rows.append(row | ({"reference": right(asked)} if number < 60 else {}))
    (folder / "traces").mkdir(parents=True)
    (folder / "traces" / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
