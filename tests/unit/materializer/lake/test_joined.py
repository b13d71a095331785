"""A call whose content is in log records and whose metadata is in a span: one trace, in any order, and never against a refusal."""

from __future__ import annotations

import json
from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.data.decoding import Limits
from ratchet.contracts.data.senders import Role, Sender
from ratchet.contracts.errors import Rejected
from ratchet.materializer.consent import settle
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.dialects.admission import Admission
from ratchet.materializer.dialects.decode import decode
from ratchet.materializer.erasure.lake_rows import LineRows, Target
from ratchet.materializer.lake.tables import joined, preferred
from tests.unit.materializer.conftest import make_datasets, make_loop, pseudonym_of
from tests.unit.materializer.records import T0, attribute, batch, evaluation, log, logs, span, spans

ASSUMED = {"governance": {"consent": "assumed"}}


def half(n: int, **more: Any) -> dict[str, Any]:
    given = {"gen_ai__input__messages": None, "gen_ai__output__messages": None, "metadata__consent": None} | more
    return span(n, gen_ai__usage__input_tokens=21, **given)


def event(n: int, name: str, body: dict[str, Any]) -> dict[str, Any]:
    value = {"kvlistValue": {"values": [attribute(key, item) for key, item in body.items() if isinstance(item, str)]}}
    if isinstance(body.get("message"), dict):
        inner = {"kvlistValue": {"values": [attribute(key, item) for key, item in body["message"].items()]}}
        value["kvlistValue"]["values"].append({"key": "message", "value": inner})
    return {
        "traceId": f"{n:032x}",
        "spanId": f"{n:016x}",
        "observedTimeUnixNano": str(T0),
        "eventName": name,
        "attributes": [attribute("gen_ai.system", "openai")],
        "body": value,
    }


def content(n: int, question: str = "Why?", answer: str = "Because.") -> list[dict[str, Any]]:
    said = {"finish_reason": "stop", "message": {"role": "assistant", "content": answer}}
    return [
        event(n, "gen_ai.developer.message", {"content": "Be brief"}),
        event(n, "gen_ai.user.message", {"content": question}),
        event(n, "gen_ai.choice", said),
    ]


def datasets_in(folder: Path) -> LakeDatasets:
    return make_datasets(folder, make_loop(**ASSUMED))


def rows_of(datasets: LakeDatasets) -> list[dict[str, Any]]:
    return preferred(settle(joined(datasets.lake.scan("traces")), datasets.lake.scan("consent"))).to_dicts()


def check_whole(datasets: LakeDatasets) -> None:
    [row] = rows_of(datasets)
    assert [message["role"] for message in json.loads(row["messages"])] == ["developer", "user"]
    assert (row["answer"], row["model"], row["response_id"], row["input_tokens"]) == ("Because.", "m", "r-1", 21)
    assert row["user"] == pseudonym_of(datasets, "u", "user-1")


def test_span_and_log_records_of_one_request_are_one_trace(tmp_path: Path) -> None:
    datasets = datasets_in(tmp_path)
    report = datasets.ingest(batch(spans(half(1)) | logs(*content(1))))
    assert report.traces.adds_up
    assert (report.traces.read, report.traces.kept, report.traces.quarantined) == (4, 1, 0)
    assert report.traces.reasons == {"content_not_captured": 1, "part_of_call": 2}
    check_whole(datasets)


@pytest.mark.parametrize("order", list(permutations(range(2))))
def test_the_halves_may_come_in_different_batches_and_in_any_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    datasets = datasets_in(tmp_path)
    requests = spans(half(1)), logs(*content(1))
    for place in order:
        report = datasets.ingest(batch(requests[place]))
        assert report.traces.adds_up
        assert report.traces.quarantined == 0
    check_whole(datasets)
    for place in order:  # a second delivery adds nothing
        assert datasets.ingest(batch(requests[place], {})).traces.kept == 0
    check_whole(datasets)


def test_a_span_alone_is_counted_and_never_alarms(tmp_path: Path) -> None:
    datasets = datasets_in(tmp_path)
    report = datasets.ingest(batch(spans(*[half(n) for n in range(1, 20)])))
    assert (report.traces.read, report.traces.skipped, report.traces.quarantined) == (19, 19, 0)


@pytest.mark.parametrize("order", list(permutations(range(2))))
@pytest.mark.parametrize("together", [True, False])
def test_a_refusal_of_the_span_counts_for_its_log_records(tmp_path: Path, order: tuple[int, ...], together: bool) -> None:
    datasets = datasets_in(tmp_path)
    requests = spans(half(1, consent=False)), logs(*content(1))
    for part in [[requests[place] for place in order]] if together else [[requests[place]] for place in order]:
        datasets.ingest(batch(*part))
    [row] = rows_of(datasets)
    assert row["refused"]
    if together or order == (0, 1):  # otherwise the text was stored before the refusal came, and is deleted as withdrawn
        assert datasets.lake.scan("traces")["messages"].drop_nulls().is_empty()


@pytest.mark.parametrize("order", list(permutations(range(2))))
@pytest.mark.parametrize(("given", "stored"), [(True, True), (None, False), (False, False)])
def test_the_consent_of_the_span_counts_for_the_log_records_of_its_batch(
    tmp_path: Path, order: tuple[int, ...], given: bool | None, stored: bool
) -> None:
    datasets = make_datasets(tmp_path)
    said = spans(half(1, metadata__consent=given)), logs(*content(1, "Write to ada@example.test"))
    report = datasets.ingest(batch(*[said[place] for place in order]))
    assert report.traces.adds_up
    rows = [row for row in rows_of(datasets) if row["messages"] is not None]
    assert [(row["consent"], row["refused"], row["model"]) for row in rows] == ([(True, False, "m")] if stored else [])
    assert "ada@example.test" not in "".join(row["messages"] for row in rows)


def test_feedback_by_the_id_of_the_response_finds_the_content(tmp_path: Path) -> None:
    datasets = datasets_in(tmp_path)
    datasets.ingest(batch(logs(*content(1))))
    datasets.ingest(batch(spans(half(1))))
    said = log(1, evaluation("user_correction", text="Other.", gen_ai__response__id="r-1")) | {"traceId": "", "spanId": ""}
    assert datasets.ingest(batch(logs(said))).feedback.kept == 1


def test_the_halves_of_an_erased_person_go_together(tmp_path: Path) -> None:
    datasets = datasets_in(tmp_path)
    datasets.ingest(batch(logs(*content(1))))
    datasets.ingest(batch(spans(half(1))))
    with datasets.lake.writing():
        user = pseudonym_of(datasets, "u", "user-1")
        LineRows(datasets.lake, Target(users=frozenset({user}))).remove(datasets._seen)
    assert len(datasets.lake.scan("traces")) == 0


def test_another_sender_can_describe_nobody_elses_call(tmp_path: Path) -> None:
    datasets = datasets_in(tmp_path)

    def sent(request: dict[str, Any], name: str) -> RawBatch:
        made = batch(request)
        return RawBatch(made.source, made.format, made.digest, made.origin, made.open, Sender(name=name, roles=(Role.TRACES,)))

    datasets.ingest(sent(logs(*content(1)), "shop"))
    datasets.ingest(sent(spans(half(1)), "thief"))
    [row] = [one for one in rows_of(datasets) if one["messages"] is not None]
    assert (row["model"], row["user"]) == (None, None)


def test_a_span_with_content_in_an_unknown_form_is_quarantined(tmp_path: Path) -> None:
    datasets = datasets_in(tmp_path)
    report = datasets.ingest(batch(spans(half(1, my__prompt="A question of a person. " * 9))))
    assert report.traces.reasons == {"no_content": 1}


def test_joined_rows_keep_their_own_values() -> None:
    columns = ("source", "id", "sender", "model", "user", "session", "region")
    given = [("s", "a", None, "m", None, None, None), ("s", "a", None, "n", "u", None, "eu"), ("s", "b", None, None, None, None, None)]
    rows = pl.DataFrame(given, schema=list(columns), orient="row")
    found = joined(rows).to_dicts()
    assert [(row["model"], row["user"], row["region"]) for row in found] == [("m", "u", "eu"), ("n", "u", "eu"), (None, None, None)]


def test_a_half_that_cannot_be_masked_is_counted_once() -> None:
    def refusing(_row: dict[str, Any]) -> Counter[str]:
        raise Rejected("too_large", "a test")

    limits = Limits(now=T0 // 1000 + 10**12, assume_consent=True)
    found = decode(batch(spans(half(1), half(2))), limits, admission=Admission(mask=refusing))
    assert (len(found.halves), found.skipped["traces"].total(), [one.reason for one in found.bad]) == (0, 0, ["too_large", "too_large"])
