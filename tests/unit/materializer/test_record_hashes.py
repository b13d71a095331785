"""Keys and hashes of many rows at once are those of the definition, whose values are recorded."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ratchet.contracts.data.records import FeedbackKind
from ratchet.materializer.dialects.plain.traces import CONSTANT
from ratchet.materializer.lake.storing.dedup_index import key_of
from ratchet.materializer.record_hashes import content_hash, content_hashes, hashed, trace_key

_TEXTS: tuple[Any, ...] = ("", "a", "é\ud800", "\x1f", "x" * 3000, None)


def test_recorded_values_stay() -> None:
    """The index of a lake has them. If one changes, the version of the index must change, too."""
    assert trace_key("gateway", "r-1").hex() == "74c6613b78fa07746f9792d99e5926b501"
    assert hashed("f", "s", True, 1, None, "").hex() == "16e32356096bd3a2db863b14d4cbdd53"


def test_hashes_of_many_rows_are_those_of_each() -> None:
    rng = random.Random(1)
    columns: dict[str, list[Any]] = {name: [rng.choice(_TEXTS[:-1]) for _ in range(200)] for name in ("messages", "answer")}
    columns |= {name: [rng.choice(_TEXTS) for _ in range(200)] for name in ("model", "tools")}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    assert content_hashes(columns) == [content_hash({**CONSTANT, **row}) for row in rows]


def test_the_key_of_a_logged_right_answer_has_its_trace_its_text_and_its_sender() -> None:
    row = {"source": "s", "trace_id": "t", "kind": FeedbackKind.LOGGED.value, "text": "2", "time": 7, "rater": "u", "sender": "x"}
    assert key_of("feedback", row) == key_of("feedback", row | {"time": 8, "rater": None})
    others = ({}, {"source": "o"}, {"trace_id": "o"}, {"text": "3"}, {"sender": None})
    assert len({key_of("feedback", row | more) for more in others}) == 5, "nobody can keep out the right answer of another sender"


@pytest.mark.parametrize("kind", [kind.value for kind in FeedbackKind if kind is not FeedbackKind.LOGGED])
@pytest.mark.parametrize("sender", [None, "", "x"])
def test_the_key_of_feedback_has_its_signal_only_if_it_is_one(kind: str, sender: str | None) -> None:
    row = {
        "source": "s",
        "trace_id": None,
        "response_id": "r",
        "rater": None,
        "kind": kind,
        "signal": "thanked",
        "time": 7,
        "sender": sender,
    }
    for changes in ({}, {"trace_id": "t"}, {"rater": "u"}, {"signal": None}, {"signal": ""}):
        one = row | changes
        subject = one["trace_id"] if one["trace_id"] is not None else one["response_id"]
        more = (kind, one["signal"]) if kind == "signal" else (kind,)
        assert key_of("feedback", one) == hashed("f", "s", one["trace_id"] is not None, subject, one["rater"], *more, 7, sender)
