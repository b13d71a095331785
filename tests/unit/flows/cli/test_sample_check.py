"""Tests of what `ratchet check` says about the first records of a source."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from ratchet.contracts.loop import Loop
from ratchet.flows.cli.setup.sample_check import sampled
from ratchet.materializer.receive.files.source import FileSource

EXAMPLES = ("Charged twice", "Late parcel")


def warnings(folder: Path, skipped: list[str]) -> list[str]:
    """The warnings about a source in which each prompt begins with the examples."""
    calls = [call_of([*EXAMPLES, f"question {n}"], n) for n in range(12)]
    return warned(folder, calls, {"skip_messages": skipped})


def call_of(texts: list[str], n: int) -> dict[str, Any]:
    """A call with these user messages, and an answer to each but the last in between."""
    both = [m for text in texts for m in ({"role": "user", "content": text}, {"role": "assistant", "content": f"to {text}"})]
    return {"messages": both[:-1], "response": f"answer {n}"}


def warned(folder: Path, calls: list[dict[str, Any]], holdout: dict[str, Any]) -> list[str]:
    """The warnings about a source with these calls."""
    with (folder / "calls.jsonl").open("w") as file:
        for n, call in enumerate(calls):
            file.write(json.dumps({"id": f"c-{n}", "timestamp": "2026-01-05T09:00:00Z", "consent": True, **call}) + "\n")
    fields: dict[str, Any] = {
        "line": {"name": "support", "served_model": "m"},
        "sources": [{"name": "calls", "kind": "jsonl", "path": "calls.jsonl"}],
        "rewards": [{"name": "exact_match"}],
        "holdout": holdout,
    }
    source, clock = FileSource("calls", "jsonl", folder / "calls.jsonl"), SimpleNamespace(now=lambda: datetime(2026, 2, 1, tzinfo=UTC))
    context = SimpleNamespace(loop=Loop.model_validate(fields), sources=(source,), clock=clock)
    return [text for level, _, text in sampled(cast(Any, context)) if level == "warning"]


def test_examples_before_each_question_are_warned_of_until_they_are_named(tmp_path: Path) -> None:
    [said] = warnings(tmp_path, [])
    assert said.startswith("calls: 12 of 12 different prompts begin with the same 2 user messages")
    assert warnings(tmp_path, json.loads(said.split("holdout.skip_messages: ")[1])) == []


def test_a_message_that_is_named_already_is_left_out_of_the_warning(tmp_path: Path) -> None:
    [said] = warnings(tmp_path, ["Charged"])
    assert said.endswith('add to holdout.skip_messages: ["late parcel"]')


def test_a_scorer_that_finds_right_answers_in_another_form_wrong_is_told_without_showing_them(tmp_path: Path) -> None:
    calls = [{"messages": f"order {n}", "response": f'{{"b": {n}, "a": 1}}', "reference": f'{{"a": 1, "b": {n}}}'} for n in range(10)]
    [said] = warned(tmp_path, calls, {})
    assert said.startswith(
        "calls: The scorer exact_match may find right answers wrong: it gave 0 to 10 of 10 logged answers, and 10 of these"
    )
    assert '"a"' not in said
    assert warned(tmp_path, [call | {"reference": call["response"]} for call in calls], {}) == []


def test_a_greeting_is_told_until_it_is_named(tmp_path: Path) -> None:
    talks = [["Hi!", f"question {n}", "and then?"][:length] for n in range(12) for length in (1, 2, 3)]
    calls = [call_of(texts, n) for n, texts in enumerate(talks)]
    [said] = warned(tmp_path, calls, {})
    assert said.startswith('calls: 25 of 25 different prompts begin with the user message "hi!"')
    assert warned(tmp_path, calls, {"skip_greetings": ["hi"]}) == []


def test_one_question_behind_different_documents_is_warned_of_until_its_mark_is_set(tmp_path: Path) -> None:
    texts = [f"Context:\nShop {n} is in street {n}.\nIt opens at {n % 5}.\n\nQuestion: Who runs branch {n % 7}?" for n in range(30)]
    calls = [call_of([text], n) for n, text in enumerate(texts)]
    [said] = warned(tmp_path, calls, {})
    assert said.startswith("calls: 30 of 30 different prompts share a question")
    mark = json.loads(said.split("(for example ")[1].split(")")[0])
    assert warned(tmp_path, calls, {"question_after": mark}) == []
