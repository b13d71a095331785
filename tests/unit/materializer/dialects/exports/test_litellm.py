"""Tests of LiteLLM's log: chat and Responses, failures, cache, users and consent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.errors import ConfigError, Rejected
from ratchet.materializer.dialects.exports.litellm import LitellmDialect
from tests.needs import shared_data
from tests.unit.materializer.receive.kinds import NOW, ingested, opened


def payload(**more: Any) -> dict[str, Any]:
    """The log of a call."""
    return {
        "id": "chatcmpl-1",
        "trace_id": "s1",
        "litellm_call_id": "c1",
        "call_type": "acompletion",
        "status": "success",
        "response_cost": 0.1,
        "startTime": 1_790_000_000.0,
        "endTime": 1_790_000_000.25,
        "model": "m",
        "end_user": "u1",
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "cache_hit": False,
        "metadata": {"user_api_key_user_id": "service", "requester_metadata": {"consent": True}},
        "model_parameters": {},
        "messages": [{"role": "user", "content": "question"}],
        "response": {"id": "chatcmpl-1", "choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "answer"}}]},
    } | more


def decoded(record: Any, assumed: bool = False) -> Decoded:
    """The result of one record."""
    into = Decoded()
    LitellmDialect().decode(record, "line 1", Limits(NOW, assumed, {"id": "elsewhere"}), into)
    return into


@pytest.mark.parametrize(
    ("given", "stored"),
    [({"total": 3, "tax": [1]}, '{"total":3,"tax":[1]}'), ('{"total": 3}', '{"total": 3}'), (["a"], '["a"]'), (False, "false"), (7, "7")],
)
def test_a_right_answer_may_be_any_json_value(given: Any, stored: str) -> None:
    [row] = decoded(payload(metadata={"requester_metadata": {"consent": True, "reference": given}})).traces
    assert row["reference"] == stored


def test_a_call_has_its_user_session_and_times() -> None:
    [row] = decoded(payload()).traces
    assert (row["id"], row["user"], row["session"], row["answer"]) == ("chatcmpl-1", "u1", "s1", "answer")
    assert (row["latency_ms"], row["input_tokens"], row["output_tokens"], row["finish_reason"]) == (250.0, 3, 4, "stop")
    assert (row["status"], row["response_id"], row["consent"]) == ("ok", "chatcmpl-1", True)


def test_a_call_of_the_responses_api_keeps_its_instructions() -> None:
    reply = {
        "id": "r",
        "object": "response",
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}],
    }
    [row] = decoded(payload(call_type="responses", messages="hello", response=reply, model_parameters={"instructions": "Be kind."})).traces
    assert [message["content"] for message in json.loads(row["messages"])] == ["Be kind.", "hello"]
    assert row["answer"] == "hi"


@pytest.mark.parametrize("status", ["failure", "ERROR", "timeout"])
def test_any_status_but_success_is_a_failed_call(status: str) -> None:
    [row] = decoded(payload(status=status, response={})).traces
    assert (row["status"], row["answer"]) == ("error", None)


@pytest.mark.parametrize(("more", "reason"), [({"cache_hit": True}, "cache_hit"), ({"call_type": "aembedding"}, "not_a_generation")])
def test_what_is_no_answer_of_a_model_is_skipped(more: dict[str, Any], reason: str) -> None:
    assert decoded(payload(**more)).skipped["traces"] == {reason: 1}


@pytest.mark.parametrize("place", ["requester_metadata", "spend_logs_metadata"])
def test_a_refusal_counts_wherever_it_stands(place: str) -> None:
    [row] = decoded(payload(metadata={"requester_metadata": {"consent": True}} | {place: {"consent": "false"}}), assumed=True).traces
    assert (row["consent"], row["messages"]) == (False, None)


def test_the_owner_of_the_key_is_not_the_user() -> None:
    [row] = decoded(payload(end_user="")).traces
    assert row["user"] is None


@pytest.mark.parametrize("place", ["requester_metadata", "spend_logs_metadata"])
def test_signals_in_the_metadata_of_the_request_are_feedback(place: str) -> None:
    told = {"requester_metadata": {"consent": True}} | {place: {"consent": True, "signals": ["copied", "sang"]}}
    found = decoded(payload(metadata=told))
    assert [(one["kind"], one["signal"], one["trace_id"]) for one in found.feedback] == [("signal", "copied", "chatcmpl-1")]
    assert [bad.reason for bad in found.bad] == ["bad_value"]


def test_keys_of_the_metadata_are_signals_where_the_loop_file_says_so(tmp_path: Path) -> None:
    calls = [
        payload(id="1", metadata={"requester_metadata": {"consent": True, "was_copied": True, "again": "0"}}),
        payload(id="2", metadata={"spend_logs_metadata": {"again": 1}, "requester_metadata": {"consent": True, "signals": ["thanked"]}}),
        payload(id="3", metadata={"requester_metadata": {"consent": True, "was_copied": None}}),
    ]
    (tmp_path / "calls.jsonl").write_text("".join(json.dumps(call) + "\n" for call in calls))
    names = {"was_copied": "copied", "again": "asked_again"}
    found = ingested(opened("litellm", tmp_path / "calls.jsonl", tmp_path / "state", signals=names))
    assert [(one["trace_id"], one["signal"]) for one in found.feedback] == [("1", "copied"), ("2", "thanked"), ("2", "asked_again")]
    assert (len(found.traces), found.bad) == (3, [])
    with pytest.raises(ConfigError, match="must be one of"):
        opened("litellm", tmp_path, tmp_path, signals={"a": "session.thanked"})


def test_another_record_is_refused() -> None:
    with pytest.raises(Rejected, match="StandardLoggingPayload"):
        decoded({"id": "1", "messages": "q", "response": "a"})


@pytest.mark.shared
def test_the_case_with_instructions_is_right() -> None:
    case = json.loads((shared_data("cases") / "23_litellm_responses_instructions.json").read_text())
    [row] = decoded(case["input"], assumed=True).traces
    assert json.loads(row["messages"])[0]["role"] == "system"


@pytest.mark.shared
@pytest.mark.slow
def test_the_shared_logs_give_the_published_counts(tmp_path: Path) -> None:
    folder = shared_data("gsm8k_traces")
    expected = json.loads((folder / "expected.json").read_text())["formats"]["litellm"]
    found = ingested(opened("litellm", folder / "litellm" / "requests", tmp_path), assumed=False)
    assert len(found.traces) == expected["traces"]
    assert sum(row["consent"] for row in found.traces) == expected["with_consent"]
    assert len({row["user"] for row in found.traces}) == expected["users"]
    assert len({row["session"] for row in found.traces}) == expected["sessions"]
    assert (found.feedback, found.bad) == ([], [])


@pytest.mark.parametrize("parameters", [{"user": "p"}, {"safety_identifier": "p"}, {"metadata": {"user_id": "p"}}])
def test_the_user_is_also_read_from_the_parameters_of_the_request(parameters: dict[str, Any]) -> None:
    assert decoded(payload(end_user="", model_parameters=parameters)).traces[0]["user"] == "p"
