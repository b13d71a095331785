"""Fuzz test of decoding with about ten thousand mutated inputs.

For any bytes, decoding returns rows that fit the tables and a reason for each rejected record.
"""

from __future__ import annotations

import json
import random

import pytest

from contracts.decoding import Limits
from contracts.records import FEEDBACK, TRACES
from materializer.dialects.decode import decode
from materializer.lake.schemas import arrow_table
from tests.unit.materializer.records import T0, evaluation, log, logs, raw, request_of, span, spans

LIMITS = Limits(now=T0 // 1000 + 10**12, assume_consent=True)
_JSON = (
    json.dumps(spans(span(1, events=[evaluation("user_feedback", 1)])))
    + "\n"
    + json.dumps(logs(log(1, evaluation("user_correction", text="x"))))
)
_PROTO = request_of(2).SerializeToString()
_RECORD = {
    "id": "a",
    "timestamp": 1790000000,
    "messages": [{"role": "user", "content": "q"}],
    "response": "r",
    "consent": True,
    "feedback": 1,
}
SEEDS = {
    "otlp-json": _JSON.encode(),
    "otlp-proto": b"T" + len(_PROTO).to_bytes(4, "big") + _PROTO,
    "jsonl": json.dumps(_RECORD | {"latency_ms": 1.5, "input_tokens": 3, "reference": "r", "correction": "c"}).encode(),
}
_PIECES = [
    b"null",
    b"[]",
    b"{}",
    b"-1",
    b"1e999",
    b'"\\ud800"',
    b"\xff",
    b"\x00",
    b'""',
    b"true",
    b"9" * 30,
    b"[" * 40,
    b"NaN",
    b'"NaN"',
    b"\n",
]


def _mutate(data: bytes, draw: random.Random) -> bytes:
    mutated = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at, size = draw.randrange(len(mutated) + 1), draw.choice([0, 1, 1, 2, 8, 40])
        piece = draw.choice([*_PIECES, bytes([draw.randrange(256)]), b"", bytes(mutated[at : at + 20])])
        mutated[at : at + size] = piece
    return bytes(mutated)


def _replace_value(data: bytes, draw: random.Random) -> bytes:
    """Replace one value, so that the result is still well-formed JSON and passes the parser."""
    lines = [json.loads(line) for line in data.decode().splitlines()]
    holder = lines[draw.randrange(len(lines))]
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            break
        key = draw.choice(keys)
        if isinstance(holder[key], dict | list) and draw.random() < 0.85:
            holder = holder[key]
            continue
        holder[key] = draw.choice(
            [None, True, -1, 1e300, 10**40, "", "x", [], {}, [[]], {"stringValue": []}, "9" * 400, [None], {"a": 1}, "\x00", 0.5]
        )
        break
    return "\n".join(json.dumps(line) for line in lines).encode()


@pytest.mark.parametrize("kind", list(SEEDS))
def test_every_input_gives_valid_rows_or_a_reason(kind: str) -> None:
    draw = random.Random(20261101)
    for index in range(3400):
        structured = kind != "otlp-proto" and index % 2
        data = _replace_value(SEEDS[kind], draw) if structured else _mutate(SEEDS[kind], draw)
        decoded = decode(raw(data, kind=kind), LIMITS)
        known = {"source": "s", "batch": "b", "ingested": LIMITS.now}
        arrow_table([row | known for row in decoded.traces], TRACES)
        arrow_table([row | known for row in decoded.feedback], FEEDBACK)
        assert all(bad.reason and len(bad.detail) <= 200 for bad in decoded.bad)
