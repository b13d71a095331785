"""Records of real libraries with the right value beside each: read as that, or quarantined where that is right; never kept wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.conversation import answer_message
from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.materializer.dialects.decode import decode
from tests.needs import shared_data
from tests.unit.materializer.records import T0, batch

pytestmark = pytest.mark.shared
LIMITS = Limits(now=T0 // 1000 + 10**14, assume_consent=True)
WANTED: dict[str, tuple[list[str], str, int]] = {
    "01": (["system", "user"], "Let me look that up.", 2),
    "02": (["system", "user"], "Let me look.", 2),
    "03": (["user"], "서울 is fine.", 0),
    "06": (["system", "user"], "", 2),
    "08": (["user"], '{"content":"Buy milk","title":"Note","done":false}', 0),
    "12": (["user"], "hi", 0),
    "13": (["user"], "hi", 0),
    "15": (["user"], "hi", 0),
    "17": (["user"], "a", 0),
    "19": (["system", "user", "assistant", "tool", "tool", "assistant", "user"], "Here is code", 0),
    "21": (["developer", "user"], "Here is code", 0),
    "23": (["system", "user", "assistant", "tool", "tool"], "Paris: 18 °C, rain.", 0),
}
"""Number of a case -> roles of its messages, beginning of its answer, and number of calls in it."""
QUARANTINED = {"11": "unknown_wrapper"}
SKIPPED = {"22": "content_not_captured"}


def cases() -> list[Path]:
    try:
        return sorted(shared_data("cases").glob("*.json"))
    except BaseException:
        return [Path("absent")]


@pytest.mark.parametrize("path", cases(), ids=lambda path: path.stem)
def test_a_record_of_a_library_has_its_right_value(path: Path) -> None:
    shared_data("cases")
    case = json.loads(path.read_text())
    limits = Limits(LIMITS.now, True, case.get("mapping", {}))
    found = decode(batch(case["input"], kind="jsonl" if case["kind"] == "jsonl" else "otlp-json"), limits)
    number = path.name[:2]
    if number in QUARANTINED:
        assert [bad.reason for bad in found.bad] == [QUARANTINED[number]]
    elif number in SKIPPED:
        assert (found.bad, found.traces, found.skipped["traces"][SKIPPED[number]]) == ([], [], 1)
    else:
        check(found, *WANTED[number])


def check(found: Decoded, roles: list[str], answer: str, calls: int) -> None:
    assert [bad.reason for bad in found.bad] == []
    [row] = found.traces
    said: dict[str, Any] = answer_message(row["answer"])
    assert [message["role"] for message in json.loads(row["messages"])] == roles
    assert said["content"].startswith(answer)
    assert len(said.get("tool_calls", [])) == calls


@pytest.mark.parametrize("name", ["failure-status-words", "placeholder-content"])
def test_failures_and_placeholders_are_no_answers(name: str) -> None:
    lines = (shared_data("cases") / name / "input.jsonl").read_bytes().splitlines()
    found = decode(batch(*lines, kind="jsonl"), LIMITS)
    assert len(found.traces) + len(found.bad) == len(lines)
    assert {bad.reason for bad in found.bad} <= {"redacted_content"}
    assert all(row["status"] == "error" and row["answer"] is None for row in found.traces)
