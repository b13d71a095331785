"""Tests of the prompts that may be sent to a teacher."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from ratchet.contracts.data.records import CONSENT
from ratchet.materializer.lake.schemas import empty_frame
from ratchet.materializer.teacher.sendable import DEVELOPMENT, NO_CONSENT, TOOLS, Statements, sendable

T0 = datetime(2026, 10, 1, tzinfo=UTC)


def traces(*rows: tuple[str, str | None, bool | None]) -> pl.DataFrame:
    """Traces (id, user, statement), one minute apart."""
    made = [
        {"source": "app", "id": name, "time": T0 + timedelta(minutes=n), "user": user, "sender": None, "third_party": said}
        for n, (name, user, said) in enumerate(rows)
    ]
    types = {"source": pl.String, "id": pl.String, "time": pl.Datetime("us", "UTC"), "user": pl.String, "sender": pl.String}
    types["third_party"] = pl.Boolean
    return pl.DataFrame(made, schema=types)


def agreeing(rows: pl.DataFrame, required: bool, prompts: str = "", apart: tuple[dict[str, Any], ...] = ()) -> pl.DataFrame:
    """The traces that agree. The letters of `prompts` are the prompts of the rows. `apart` are statements apart from traces."""
    asked = rows.with_columns(prompt_id=pl.Series(list(prompts) or ["p"] * len(rows), dtype=pl.String))
    said = rows if "refused" in rows.columns else rows.with_columns(refused=False)
    stated = [{"source": "app", "sender": None, "operator": False, "ingested": T0, "batch": "b"} | one for one in apart]
    none = empty_frame(CONSENT)
    return Statements([said], pl.DataFrame(stated, schema=none.schema) if stated else none).agreeing(asked, required)


def ids(found: pl.DataFrame) -> list[str]:
    return sorted(found["id"].to_list())


def test_silence_is_no_consent() -> None:
    rows = traces(("a", "u", None), ("b", None, None), ("c", None, True), ("d", None, False))
    assert ids(agreeing(rows, required=True)) == ["c"]
    assert ids(agreeing(rows, required=False)) == ["a", "b", "c"], "a refusal always counts"


def test_the_newest_statement_of_a_user_counts_for_all_their_traces() -> None:
    rows = traces(("a", "u", True), ("b", "u", None), ("c", "u", False), ("d", "v", False), ("e", "v", True), ("f", "v", None))
    assert ids(agreeing(rows, required=True)) == ["d", "e", "f"]
    assert ids(agreeing(rows, required=False)) == ["d", "e", "f"]


def test_of_refused_traces_only_refusals_count() -> None:
    rows = traces(("a", "u", True), ("b", "u", False), ("c", "v", None), ("d", "v", True))
    assert ids(agreeing(rows.with_columns(refused=pl.col("id").is_in(["b", "d"])), required=True)) == []


def test_of_two_statements_at_one_time_the_refusal_counts() -> None:
    rows = traces(("a", "u", False), ("b", "u", True)).with_columns(time=pl.lit(T0))
    assert ids(agreeing(rows, required=True)) == []


def user(given: bool, minutes: int, **more: Any) -> dict[str, Any]:
    """A statement about the user u."""
    return {"subject": "user_third_party", "id": "u", "given": given, "time": T0 + timedelta(minutes=minutes)} | more


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ((user(False, 5),), ["c"]),
        ((user(False, 1),), ["c"]),
        ((user(False, 0),), ["a", "b", "c"]),
        ((user(False, 5), user(True, 6)), ["c"]),
        ((user(False, 5), user(True, 6, operator=True)), ["a", "b", "c"]),
        ((user(False, 5), user(True, 6, operator=True), user(False, 6)), ["c"]),
        ((user(False, 5, subject="user"),), ["a", "b", "c"]),
        ((user(False, 5, subject="trace_third_party", id="b"),), ["a", "c"]),
        ((user(False, 5, subject="trace_third_party", id="c"),), ["a", "b"]),
        ((user(False, 5, subject="trace_third_party", id="c", source="other"),), ["a", "b", "c"]),
    ],
)
def test_a_statement_apart_from_traces_refuses_for_a_user_or_a_trace(said: tuple[dict[str, Any], ...], sent: list[str]) -> None:
    rows = traces(("a", "u", None), ("b", "u", True), ("c", None, True))
    assert ids(agreeing(rows, required=True, apart=said)) == sent


@pytest.mark.parametrize("required", [True, False])
def test_nobody_else_lifts_a_refusal(required: bool) -> None:
    rows = traces(("a", "u", None), ("b", "u", None), ("forged", "u", True), ("more", "u", None))
    sent_by = {"b": "traces shop", "forged": "traces thief", "more": "traces thief"}
    rows = rows.with_columns(sender=pl.col("id").replace_strict(sent_by, default=None))
    refusal = user(False, 1)
    assert ids(agreeing(rows, required, apart=(refusal,))) == ["forged", "more"], "a sender can send on what it has anyway"
    assert ids(agreeing(rows, required, apart=(refusal, user(True, 9, sender="traces shop")))) == ["b", "forged", "more"]
    assert ids(agreeing(rows, required, apart=(refusal, user(True, 9, operator=True)))) == ["a", "b", "forged", "more"]


def test_each_prompt_is_sent_masked_about_its_newest_agreed_trace_or_has_a_reason() -> None:
    prompts = pl.DataFrame(
        [
            {"prompt_id": name, "prompt": json.dumps([{"role": "user", "content": "mail a@b.de"}]), "tools": tools, "slice": None,
             "reference": reference}
            for name, tools, reference in (("p", None, None), ("q", "[{}]", None), ("r", None, "7"), ("s", None, None), ("t", None, "7"))
        ]
    )  # fmt: skip
    agreed = agreeing(traces(*((one, None, one != "e") for one in "abcdef")), required=True, prompts="ppqrst")
    found = sendable(prompts, agreed, ["p", "q", "s", "t"], lambda text: text.replace("a@b.de", "[EMAIL_1]"), provable=False)
    assert [(one.prompt_id, one.trace, one.answered) for one in found.prompts] == [("p", "app/b", False), ("t", "app/f", True)]
    assert found.prompts[0].messages == ({"role": "user", "content": "mail [EMAIL_1]"},)
    assert found.refused == {"q": TOOLS, "r": DEVELOPMENT, "s": NO_CONSENT}
