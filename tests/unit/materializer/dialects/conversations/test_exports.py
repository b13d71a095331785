"""Real exports of six frameworks, each as Langfuse's observations and as OTLP, with the conversations that must come out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.conversation import answer_message
from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.data.decoding import Limits, Row
from ratchet.contracts.data.records import TRACES
from ratchet.contracts.ids import digest_file
from ratchet.materializer.dialects.decode import decode
from ratchet.materializer.lake.schemas import arrow_table
from tests.needs import shared_data
from tests.unit.materializer.records import T0

pytestmark = pytest.mark.shared
LIMITS = Limits(now=T0 // 1000 + 10**14, assume_consent=True)
FORMS = {"langfuse": ("langfuse.jsonl", "jsonl"), "otlp": ("otlp.json", "otlp-json")}


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message of either side in one form: role, text, calls as (id, name, arguments), id of the answered call."""
    inner = message.get("json", {}).get("message", {}) if message.get("role") is None else {}
    message = {**inner, **{key: value for key, value in message.items() if value is not None}}
    calls = [
        (call["id"], call.get("function", call)["name"], json.loads(call.get("function", call)["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    role = "assistant" if message.get("role") == "model" else message.get("role")
    return {"role": role, "content": message.get("content") or "", "calls": calls, "answers": message.get("tool_call_id")}


def _expected(case: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    every = [*case["input"], *case["output"]]
    tools = next((message["tools"] for message in every if message.get("tools")), [])
    return [_plain(message) for message in case["input"]], [_plain(message) for message in case["output"]], tools


def _differences(row: Row, case: dict[str, Any]) -> list[str]:
    asked, answered, tools = _expected(case)
    messages = [_plain(message) for message in json.loads(row["messages"])]
    found = [_plain(answer_message(row["answer"]))]
    known = [tool["function"] for tool in json.loads(row["tools"] or "[]")]
    wrong = [] if len(messages) == len(asked) else [f"{len(messages)} messages, not {len(asked)}"]
    for place, (one, other) in enumerate(zip(messages, asked, strict=False)):
        if one != other and other["role"] is not None:  # the expectation has no content where Langfuse could not read a message
            wrong.append(f"message {place}: {one} is not {other}")
    if found != answered:
        wrong.append(f"answer: {found} is not {answered}")
    return wrong if known == tools else [*wrong, f"tools: {known} are not {tools}"]


def _rows(folder: Path, form: str) -> Iterator[tuple[str, Row]]:
    suffix, kind = FORMS[form]
    for path in sorted(folder.glob(f"*.{suffix}")):
        batch = RawBatch("s", kind, digest_file(path), str(path), lambda path=path: path.open("rb"))  # type: ignore[misc]
        found = decode(batch, LIMITS)
        arrow_table([row | {"ingested": 0, "batch": "b", "source": "s", "sender": None} for row in found.traces], TRACES)
        for row in found.traces:
            yield row["id"], row


@pytest.mark.parametrize("form", FORMS)
def test_every_model_call_comes_in_whole_and_nothing_else(form: str) -> None:
    folder = shared_data("exports")
    cases = json.loads((folder / "expected.json").read_text())
    wanted = {case["otlp_id"] if form == "otlp" else identity: case for identity, case in cases.items()}
    rows = dict(_rows(folder, form))
    results = {identity: _differences(rows[identity], case) if identity in rows else ["missing"] for identity, case in wanted.items()}
    for identity, wrong in results.items():
        print(f"{form:8} {wanted[identity]['framework']:30} {identity:60} {wrong or 'exact'}")
    assert {identity: wrong for identity, wrong in results.items() if wrong} == {}
    assert rows.keys() - wanted.keys() == set()
