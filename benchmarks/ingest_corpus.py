"""Made-up records for the speed of ingest (`benchmarks/ingest.py`): JSON Lines and OTLP requests, from a seed.

The text of a record is prose of made-up words with sentence signs and a few numbers. One record in ten is code or a log. `personal` is the
share of records with personal data: an e-mail address and a phone number, and in turn a card, an IBAN, an API key or an IP address.
`rated` is the share of records with a rating. Times are random within ten days, and users and sessions repeat.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ratchet.contracts.ids import digest

Shape = Literal["one", "turns", "tiny"]
"""one: a prompt of 1 KB. turns: 20 messages, of which ten belong to calls of tools. tiny: a few words."""
_BEGIN = datetime(2026, 5, 4, tzinfo=UTC)
_OTHERS = (
    "def total(items: list[Item]) -> float:\n    return sum(item.price * item.count for item in items if not item.returned)\n",
    "2025-11-03T08:15:30.123456Z INFO worker-3 took 132 ms, 4096 rows; 10.0.3.17 GET /api/v2/items/812344 200 5316\n",
    "SELECT name, count(*) AS n FROM orders WHERE created > '2024-05-01' GROUP BY name ORDER BY n DESC LIMIT 10;\n",
)
_MORE = (
    "my card is 4111 1111 1111 1111",
    "IBAN DE89 3704 0044 0532 0130 00",
    "api_key = sk-proj-{key}",
    "the server is 93.184.216.34",
)


@dataclass(frozen=True)
class Corpus:
    """A corpus that is the same for the same values."""

    records: int
    shape: Shape = "one"
    personal: float = 0.05
    rated: float = 0.3
    seed: int = 1
    size: int = 1024
    """Characters of a prompt of the shape `one`."""
    prefix: str = "r-"
    """Beginning of the ids."""

    def lines(self) -> Iterator[bytes]:
        """Yield the records as JSON Lines."""
        made = _Made(self)
        for number in range(self.records):
            yield json.dumps(made.record(number), ensure_ascii=False).encode() + b"\n"

    def requests(self, spans: int = 50) -> Iterator[bytes]:
        """Yield the records as OTLP requests in JSON, each with so many spans."""
        made = _Made(self)
        for begin in range(0, self.records, spans):
            listed = [made.span(number) for number in range(begin, min(self.records, begin + spans))]
            request = {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": {"name": "b"}, "spans": listed}]}]}
            yield json.dumps(request, ensure_ascii=False).encode()


def protobuf(request: bytes) -> bytes:
    """Return an OTLP request, given as JSON, as protobuf."""
    message = ExportTraceServiceRequest()
    for resource in json.loads(request)["resourceSpans"]:
        spans = message.resource_spans.add().scope_spans.add().spans
        for span in resource["scopeSpans"][0]["spans"]:
            made = spans.add(name=span["name"], trace_id=bytes.fromhex(span["traceId"]), span_id=bytes.fromhex(span["spanId"]))
            made.start_time_unix_nano, made.end_time_unix_nano = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
            for item in span["attributes"]:
                attribute = made.attributes.add(key=item["key"])
                (kind, value), *_ = item["value"].items()
                if kind == "stringValue":
                    attribute.value.string_value = value
                elif kind == "intValue":
                    attribute.value.int_value = int(value)
                else:
                    attribute.value.bool_value = value
    return message.SerializeToString()


class _Made:
    """Makes the records of a corpus one after another."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus, self._rng = corpus, random.Random(corpus.seed)
        letters = "eeeeeaaaiiioootttnnnsssrrrlldduucmpghbfvwky"
        self._words = ["".join(self._rng.choices(letters, k=self._rng.randint(2, 10))) for _ in range(4000)]

    def _prose(self, size: int) -> str:
        rng, parts, length = self._rng, list[str](), 0
        if size > 200 and rng.random() < 0.1:
            return (rng.choice(_OTHERS) * (size // 80))[:size]
        while length < size:
            words = rng.choices(self._words, k=rng.randint(6, 16))
            if rng.random() < 0.15:
                words.insert(3, str(rng.choice((2024, rng.randint(1, 500), f"{rng.randint(1, 99)}.{rng.randint(0, 9)}", "12:30"))))
            text = " ".join(words).capitalize() + rng.choice((". ", ". ", ". ", "? ", ": ", ", "))
            parts.append(text)
            length += len(text)
        return "".join(parts)[:size]

    def _personal(self) -> str:
        rng = self._rng
        more = rng.choice(_MORE).replace("{key}", "".join(rng.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789", k=40)))
        address, number = f"{rng.choice(self._words)}.{rng.randint(1, 999)}@example.org", rng.randint(1000000, 9999999)
        return f" Write to {address} or call +49 170 {number}; {more}."

    def _text(self, size: int) -> str:
        return self._prose(size) + (self._personal() if self._rng.random() < self._corpus.personal else "")

    def _messages(self) -> list[dict[str, Any]]:
        rng, corpus = self._rng, self._corpus
        if corpus.shape != "turns":
            return [{"role": "user", "content": self._text(corpus.size if corpus.shape == "one" else 12)}]
        said: list[dict[str, Any]] = []
        for turn in range(5):
            call = f"call_{rng.getrandbits(64):016x}"
            function = {"name": "find_order", "arguments": json.dumps({"order": f"A-{rng.randint(100, 999)}", "limit": 3})}
            said += [
                {"role": "user", "content": self._prose(80)},
                {"role": "assistant", "content": None, "tool_calls": [{"id": call, "type": "function", "function": function}]},
                {"role": "tool", "tool_call_id": call, "content": json.dumps({"status": "late", "days": turn})},
                {"role": "assistant", "content": self._prose(80)},
            ]
        return [*said[:-1], {"role": "user", "content": self._text(80)}]

    def record(self, number: int) -> dict[str, Any]:
        """Return a record of the format of JSON Lines."""
        rng = self._rng
        at = _BEGIN + timedelta(seconds=rng.randint(0, 863_999), milliseconds=rng.randint(0, 999))
        record = {
            "id": f"{self._corpus.prefix}{digest(str(number))[:20]}",
            "timestamp": at.isoformat(),
            "user_id": f"user-{rng.randint(1, max(1, self._corpus.records // 20))}",
            "session_id": f"session-{rng.randint(1, max(1, self._corpus.records // 4))}",
            "model": rng.choice(("small", "large")),
            "consent": True,
            "messages": self._messages(),
            "response": self._prose(160 if self._corpus.shape != "tiny" else 8),
            "latency_ms": rng.randint(100, 4000),
        }
        return record | ({"feedback": rng.randint(0, 1)} if rng.random() < self._corpus.rated else {})

    def span(self, number: int) -> dict[str, Any]:
        """Return a span in OTLP's JSON form, with the messages of the current conventions."""
        record = self.record(number)
        begin = int(datetime.fromisoformat(record["timestamp"]).timestamp() * 1000) * 1_000_000
        asked = [{"role": one["role"], "parts": [{"type": "text", "content": one["content"]}]} for one in record["messages"]]
        answer = {"role": "assistant", "parts": [{"type": "text", "content": record["response"]}], "finish_reason": "stop"}
        texts = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": record["model"],
            "gen_ai.response.model": record["model"],
            "gen_ai.input.messages": json.dumps(asked, ensure_ascii=False),
            "gen_ai.output.messages": json.dumps([answer], ensure_ascii=False),
            "user.id": record["user_id"],
            "session.id": record["session_id"],
        }
        attributes: list[dict[str, Any]] = [{"key": key, "value": {"stringValue": value}} for key, value in texts.items()]
        attributes += [{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "240"}}]
        attributes += [{"key": "gen_ai.usage.output_tokens", "value": {"intValue": "40"}}]
        attributes += [{"key": "metadata.consent", "value": {"boolValue": True}}]
        return {
            "traceId": digest(f"t{number}")[:32],
            "spanId": digest(f"s{number}")[:16],
            "name": "chat",
            "kind": 3,
            "startTimeUnixNano": str(begin),
            "endTimeUnixNano": str(begin + 900_000_000),
            "attributes": attributes,
        }
