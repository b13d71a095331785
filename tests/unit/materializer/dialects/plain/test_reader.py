"""Plain records, which are read in one pass and masked in blocks, give the same rows, counts and reasons as the definition."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.loop import PrivacySettings
from ratchet.materializer.dialects.admission import Admission
from ratchet.materializer.dialects.decode import BUILT_IN, decode
from ratchet.materializer.dialects.plain.reader import PlainReader
from ratchet.materializer.privacy.masking import Masker
from tests.unit.materializer.records import T0, raw

NOW = T0 // 1000 + 10**12
_ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 0.5, 1.5, 10**30, 1e300, "", " ", "\n", "0", "1", "true", "None", "null", "\u0000", "a\u0000b", " a "),
    *([], {}, [1], {"a": 1}, {"id": "x"}, {"consent": False}, "x" * 2000, "é" * 400, "{", "[1]", '{"a": 1}', "user", "error", "ok", "500"),
]
_TEXTS = [
    "What is the capital of France?",
    "Write to ada@example.org or call +49 170 1234567.",
    "card 4111 1111 1111 1111, IBAN DE89 3704 0044 0532 0130 00, server 93.184.216.34",
    "password = Tr0ub4dor&3xyz, api_key: sk-proj-abcdefghij0123456789ABCDEFGHIJ",
    *("", " ", "data: hello", "data:image/png;base64,AAAA", "event: x\ndata: {}", "id", "end of it", "i think so", "<think>a</think>b"),
    *(
        "[REDACTED]",
        "REDACTED",
        "a\n[redacted]\nb",
        "xxxxxx",
        "***",
        "[Filtered]",
        "default-message-value",
        "█████████",
        "redacted-by-litellm",
    ),
    *(
        '{"role": "assistant", "content": "x"}',
        '{"content":"a","role":"assistant"}',
        '["a"]',
        '"quoted"',
        "AIMessage(content='x')",
        "{'role': 'x'}",
    ),
    *(
        "user: hi\nassistant: ho",
        "None",
        "null",
        "undefined",
        'a "tool_calls":[ b',
        "안녕하세요, 제 번호는 010-1234-5678",
        "ſecret toKen=Abc123!x",
        "a\u0000b",
    ),
    *(
        "ada (at) example (dot) org",
        "at gmail.com name at gmail dot com",
        "x" * 40_000,
        "é" * 20_000,
        "id 123456789012 and 756.1234.5678.97",
    ),
]
_EXTRA = (
    "metadata",
    "tags",
    "user.id",
    "session",
    "consent_given",
    "attributes",
    "attributes.a",
    "trace_id",
    "model_parameters",
    "info",
    "x",
)
_KEYS = (
    *("id", "timestamp", "user_id", "session_id", "messages", "tools", "response", "model", "latency_ms", "input_tokens", "output_tokens"),
    *("region", "consent", "confidentiality", "feedback", "correction", "signals", "reference", "slice", "response_id", "finish_reason"),
    *("status", "model_version", "origin", "consent_time", "consent_for", "error", *_EXTRA),
)


def _text(rng: random.Random) -> str:
    return rng.choice(_TEXTS[:4]) + rng.choice(("", "", " and 2024", " ?!", "\n")) if rng.random() < 0.7 else rng.choice(_TEXTS)


def _messages(rng: random.Random) -> Any:
    made: list[Any] = []
    for _ in range(rng.randint(1, 3)):
        message: dict[str, Any] = {"role": rng.choice(("user", "user", "assistant", "system", "developer", "human"))}
        message["content"] = _text(rng)
        if rng.random() < 0.07:
            message[rng.choice(("name", "content", "role", "tool_calls", "refusal", "x", "parts"))] = rng.choice(_ODD)
        made.append(message if rng.random() < 0.97 else rng.choice(_ODD))
    if rng.random() < 0.4:
        made[1:1] = _calls(rng)
    return made if rng.random() < 0.9 else rng.choice((*_TEXTS, *_ODD, {"messages": made}))


def _calls(rng: random.Random) -> list[Any]:
    """Calls of tools and their results, some of which do not fit."""
    identities = rng.sample(["call_1", "call_2", "c" * 300, "", "\u0000", "fc_1"], 2) if rng.random() < 0.2 else ["call_1", "call_2"]
    names, arguments = (
        ("find", "get weather", " ", "", "a\u0000"),
        ("{}", '{"a": "ada@example.org"}', "", "[]", '"x"', "{", ' {"a": 1}', '{"a": "think"}'),
    )
    calls: list[Any] = []
    for identity in identities[: rng.randint(1, 2)]:
        usual = rng.random() < 0.85
        function = {"name": names[0] if usual else rng.choice(names), "arguments": arguments[1] if usual else rng.choice(arguments)}
        calls.append({"id": identity, "type": "function", "function": function})
        if rng.random() < 0.1:
            rng.choice((calls[-1], function))[rng.choice(("id", "type", "name", "arguments", "index", "x"))] = rng.choice(_ODD)
    asked: dict[str, Any] = {"role": "assistant", "content": rng.choice((None, "", "I look.", "i think", 1)), "tool_calls": calls}
    if rng.random() < 0.1:
        asked[rng.choice(("content", "tool_calls", "name", "role", "refusal"))] = rng.choice(_ODD)
    contents = ('{"status": "late", "phone": "+49 170 1234567"}', "sunny", "", "[1]") if rng.random() < 0.9 else (None, ["a"], {"a": 1})
    results: list[Any] = [{"role": "tool", "tool_call_id": one, "content": rng.choice(contents)} for one in identities[: len(calls)]]
    if rng.random() < 0.15:
        results = rng.choice(
            ([], results[::-1], [*results, *results], [results[0] | {"name": "find"}], [results[0] | {"tool_call_id": "other"}])
        )
    return [asked, *results]


_TOOLS: tuple[Any, ...] = (
    [{"type": "function", "function": {"name": "find", "description": "ask ada@example.org", "parameters": {"type": "object"}}}],
    *([{"type": "function", "function": {"name": "find"}}], [{"type": "web_search"}], [{"name": "find"}], "[]", [], {}, "x"),
)


def _record(rng: random.Random, number: int) -> Any:
    made: dict[str, Any] = {
        "id": f"r{number}",
        "timestamp": rng.choice(("2026-09-21T10:00:00Z", 1790000000, "1790000000", "2026-09-21", 1790000000000)),
        "user_id": f"u{number % 7}",
        "messages": _messages(rng),
        "response": _text(rng),
        "consent": True,
    }
    if rng.random() < 0.3:
        made["tools"] = _TOOLS[0] if rng.random() < 0.7 else rng.choice(_TOOLS)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        made[rng.choice(_KEYS)] = rng.choice((*_ODD, *_TEXTS[:6], "2026-09-21T10:00:00Z", 0.25))
    for key in rng.sample(sorted(made), rng.choice((0, 0, 0, 1))):
        del made[key]
    if rng.random() < 0.2:
        made = dict(rng.sample(sorted(made.items(), key=lambda item: item[0]), len(made)))
    return made if rng.random() < 0.98 else rng.choice(_ODD)


def _corpus(count: int, seed: int) -> bytes:
    rng = random.Random(seed)
    return b"\n".join(json.dumps(_record(rng, number), ensure_ascii=rng.random() < 0.5).encode() for number in range(count))


def _read(data: bytes, limits: Limits, bulk: bool) -> Decoded:
    masker = Masker(PrivacySettings())
    admission = Admission(hide=lambda subject, text: f"{subject}:{text}", mask=masker.mask, bulk=masker if bulk else None)
    return decode(raw(data, kind="jsonl"), limits, BUILT_IN, admission)


def _compared(found: Decoded) -> dict[str, Any]:
    told = Counter({key: count for key, count in found.told.items() if count})
    return {**vars(found), "told": told, "masked": +found.masked}


def _hold_both(monkeypatch: pytest.MonkeyPatch, data: bytes, limits: Limits) -> tuple[int, int]:
    """Compare both ways, and return the numbers of plain records and of all traces."""
    plain = [0]
    read = PlainReader.read

    def counted(self: PlainReader, records: Any) -> Any:
        found = read(self, records)
        plain[0] += len(found.numbers)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(PlainReader, "read", counted)
        fast = _read(data, limits, bulk=True)
    with monkeypatch.context() as patched:
        patched.setattr(PlainReader, "read", lambda self, _: read(self, []))
        slow = _read(data, limits, bulk=False)
    one, other = _compared(fast), _compared(slow)
    for name, value in other.items():
        if isinstance(value, list):
            for mine, its in zip(one[name], value, strict=True):
                assert mine == its, name
        else:
            assert one[name] == value, name
    return plain[0], len(slow.traces)


@pytest.mark.slow
@pytest.mark.parametrize("assumed", [False, True])
def test_both_ways_give_the_same_rows_counts_and_reasons(monkeypatch: pytest.MonkeyPatch, assumed: bool) -> None:
    limits = Limits(now=NOW, assume_consent=assumed, placeholders=("the capital of",) if assumed else ())
    plain, traces = _hold_both(monkeypatch, _corpus(700, 1), limits)
    assert plain > 60
    assert traces > plain / 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_both_ways_give_the_same_over_many_records(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    _hold_both(monkeypatch, _corpus(2500, seed), Limits(now=NOW, assume_consent=seed % 2 == 0))


def test_a_row_that_cannot_be_masked_is_quarantined_and_its_neighbours_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    masker = Masker(PrivacySettings())

    def failing(texts: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(masker._detectors[0], "each", failing)
    same = {"timestamp": 1790000000, "consent": True, "messages": [{"role": "user", "content": "q"}], "response": "Yes."}
    data = b"\n".join(json.dumps(same | {"id": str(number)}).encode() for number in range(3))
    found = decode(raw(data, kind="jsonl"), Limits(now=NOW), BUILT_IN, Admission(mask=masker.mask, bulk=masker))
    assert [bad.reason for bad in found.bad] == ["masking_failed"] * 3
    assert all(bad.place is not None and bad.place.digest for bad in found.bad)
