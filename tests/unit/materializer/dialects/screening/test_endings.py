"""How calls ended: cut answers, answers that an error or a filter broke off, and failures that no status names."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import finish_of, is_stopped
from ratchet.materializer.dialects.decode import decode
from ratchet.materializer.dialects.screening.outcome import OUTCOMES, record_has_failed, span_has_failed
from tests.unit.materializer.records import T0, batch, span, spans

LIMITS = Limits(now=T0 // 1000 + 10**12, assume_consent=True)
CUT = ("length", "max_tokens", "MAX_TOKENS", "LENGTH", "FinishReason.MAX_TOKENS", "FINISH_REASON_MAX_TOKENS", "max-tokens",
       "model_context_window_exceeded", "pause_turn")  # fmt: skip
STOPPED = ("error", "ERROR", "content_filter", "content-filter", "SAFETY", "FinishReason.SAFETY", "RECITATION", "refusal",
           "guardrail_intervened", "MALFORMED_FUNCTION_CALL", "ERROR_TOXIC", "abort")  # fmt: skip
ENDED = ("stop", "STOP", "end_turn", "COMPLETE", "other", "unknown", "tool_call", "eos_token", "")
MARKS = ("gen_ai.response.finish_reasons", "gen_ai.response.finish_reason", "llm.finish_reason", "llm.response.finish_reason")


def record(**more: Any) -> dict[str, Any]:
    return {"id": "a", "timestamp": T0, "messages": "What is due?", "response": "Noth"} | more


def observation(**more: Any) -> dict[str, Any]:
    known = {
        "id": "o",
        "traceId": "t",
        "type": "GENERATION",
        "startTime": "2026-01-01T00:00:00Z",
        "input": [{"role": "user", "content": "q"}],
    }
    return known | {"output": {"role": "assistant", "content": "Noth"}} | more


def read(*records: Any, kind: str = "jsonl") -> Decoded:
    return decode(batch(*records, kind=kind), LIMITS)


@pytest.mark.parametrize("word", CUT)
def test_all_names_of_a_cut_answer_become_one(word: str) -> None:
    told = [span(1, **{mark: word}) for mark in MARKS] + [span(1, **{MARKS[0]: f'["{word}"]'})]
    rows = [*read(*map(spans, told), kind="otlp-json").traces, *read(record(finish_reason=word)).traces]
    assert {(row["finish_reason"], row["status"]) for row in rows} == {("length", "ok")}
    assert len(rows) == len(MARKS) + 2


@pytest.mark.parametrize("word", STOPPED)
def test_an_answer_that_was_broken_off_is_no_success(word: str) -> None:
    told = [span(1, **{mark: word}) for mark in MARKS] + [span(1, answer="", **{MARKS[0]: word})]
    body = {"choices": [{"finish_reason": word, "message": {"role": "assistant", "content": "Noth"}}]}
    empty = {"choices": [{"finish_reason": word, "message": {"role": "assistant", "content": None}}]}
    records = [record(finish_reason=word), record(response=body), record(response=empty), record(response={"messages": "", **body})]
    rows = [*read(*map(spans, told), kind="otlp-json").traces, *read(*records[:3], observation(output=body)).traces]
    assert [row["status"] for row in rows] == ["error"] * 9


@pytest.mark.parametrize("word", ENDED)
def test_other_endings_are_a_success(word: str) -> None:
    assert not is_stopped(finish_of(word))
    assert finish_of(word) != "length"


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_failed_response_without_output_is_a_failed_call(status: str) -> None:
    [row] = read(record(response={"object": "response", "status": status, "output": []})).traces
    assert (row["status"], row["answer"]) == ("error", None)


def test_a_reply_that_was_cut_counts_against_a_span_that_says_nothing_of_it() -> None:
    cut = '[{"role": "assistant", "parts": [{"type": "text", "content": "a"}], "finish_reason": "length"}]'
    [row] = read(spans(span(1, gen_ai__output__messages=cut, **{MARKS[0]: "stop"})), kind="otlp-json").traces
    assert row["finish_reason"] == "length"


@pytest.mark.parametrize(
    "more",
    [
        *({"status_code": 503}, {"http_status": "429"}, {"statusCode": 404}, {"success": False}, {"succeeded": "false"}, {"ok": False}),
        *({"is_error": True}, {"failed": "true"}, {"error_message": "boom"}, {"error_code": 13}, {"exception": "TimeoutError"}),
        *({"status": "ok", "success": False}, {"status": "success", "status_code": 500}, {"error": {"message": "x"}}),
    ],
)
def test_records_say_in_many_keys_that_a_call_failed(more: dict[str, Any]) -> None:
    [row] = read(record(**more)).traces
    assert (row["status"], row["answer"]) == ("error", None)


@pytest.mark.parametrize(
    "more",
    [
        {"status_code": 200},
        {"success": True},
        {"ok": "true"},
        {"is_error": False},
        {"error_message": ""},
        {"error_code": 0},
        {"success": 0.7},
    ],
)
def test_records_with_these_keys_can_be_a_success(more: dict[str, Any]) -> None:
    [row] = read(record(**more)).traces
    assert (row["status"], row["answer"]) == ("ok", "Noth")


def test_a_code_that_is_not_known_is_no_success() -> None:
    with pytest.raises(Rejected, match="unknown_status"):
        record_has_failed({"status_code": 7}.get)
    assert len(set(OUTCOMES)) == len(OUTCOMES)


def test_an_exception_or_a_reply_with_an_error_counts_while_the_status_of_a_span_is_not_set() -> None:
    assert all(span_has_failed(status, None, code) for status, code in ((None, 503), ({}, "404"), ({"code": 0}, 400)))
    assert span_has_failed({"code": 0}, None, None, True)
    assert not span_has_failed({"code": 1}, None, 503, True)
    assert not span_has_failed(None, None, 200)
    raised = {"name": "exception", "timeUnixNano": str(T0), "attributes": []}
    sent = spans(span(1, events=[raised])), spans(span(2, **{"http.response.status_code": 500})), spans(span(3) | {"status": {"code": 1}})
    assert [row["status"] for row in read(*sent, kind="otlp-json").traces] == ["error", "error", "ok"]
