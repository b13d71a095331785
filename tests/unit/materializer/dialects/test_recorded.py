"""Exports of real libraries, recorded by `python -m tests.harness --record`: what the dialects read, beside the log of the model server."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.harness.compare import Outcome, judge
from tests.harness.libraries import LIBRARIES, Library

FOLDER = Path(__file__).with_name("recorded")
OUTCOMES: dict[str, dict[str, int]] = json.loads((FOLDER / "outcomes.json").read_text())


def recorded(library: Library) -> list[tuple[dict[str, Any], list[tuple[str, Any]]]]:
    with gzip.open(FOLDER / f"{library.name.replace(' ', '_')}.jsonl.gz") as file:
        lines = [json.loads(line) for line in file]
    return [(line["truth"], [(form, record) for form, record in line["records"]]) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_recorded_calls_are_read_as_the_server_answered_them(library: Library) -> None:
    calls = recorded(library)
    verdicts = [(truth["scene"], truth["api"], judge(truth, records, library.rules)) for truth, records in calls]
    bad = [one for one in verdicts if one[2].outcome in (Outcome.WRONG, Outcome.QUARANTINED)]
    assert bad == []
    assert Counter(str(one.outcome) for _, _, one in verdicts) == OUTCOMES[library.name]


def test_a_changed_export_is_noticed() -> None:
    """The comparison itself can fail: each change of what the server has said is silently wrong."""
    library = next(one for one in LIBRARIES if one.name == "otel openai-v2 spans")
    truth, records = next(call for call in recorded(library) if call[0]["answer"] and len(call[0]["messages"]) == 4)
    other = [truth["messages"][0] | {"text": "Another system message."}, *truth["messages"][1:]]
    changes: list[dict[str, Any]] = [
        {"answer": truth["answer"] | {"text": "Another answer."}},
        {"messages": other},
        {"messages": truth["messages"][:-1]},
        {"model": "another"},
        {"input_tokens": int(truth["input_tokens"]) + 1, "output_tokens": int(truth["output_tokens"]) + 1},
        {"status": "error"},
        {"user": "another"},
        {"consent": False},
    ]
    outcomes = [judge(truth | change, records, library.rules).outcome for change in changes]
    assert judge(truth, records, library.rules).outcome is not Outcome.WRONG
    assert outcomes == [Outcome.WRONG] * 4 + [outcomes[4]] + [Outcome.WRONG] * 3
