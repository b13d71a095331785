"""Tests of right answers that come with a record of a known trace: each is stored once, whatever the format and the order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.datasets import IngestReport
from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.data.senders import Role, Sender
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.lake.tables import Lake
from tests.unit.materializer.conftest import make_datasets
from tests.unit.materializer.dialects.exports.test_litellm import payload
from tests.unit.materializer.records import batch, span, spans


@pytest.fixture
def datasets(tmp_path: Path) -> LakeDatasets:
    return make_datasets(tmp_path)


def call(n: int = 1, **more: Any) -> dict[str, Any]:
    """A record of a call."""
    said = {"messages": "1 + 1?", "response": "A: 2", "model": "m", "user_id": "u", "consent": True}
    return {"id": f"c{n}", "timestamp": "2026-10-01T00:00:00Z", **said, **more}


def ingested(datasets: LakeDatasets, *records: Any) -> IngestReport:
    report = datasets.ingest(batch(*records, source="app", kind="jsonl"))
    assert report.traces.adds_up
    assert report.feedback.adds_up
    return report


def late(datasets: LakeDatasets) -> list[tuple[str, str]]:
    """Trace and text of the stored late right answers, in their order."""
    rows = datasets.lake.scan("feedback").sort("time").to_dicts()
    return [(row["trace_id"], row["text"]) for row in rows if row["kind"] == FeedbackKind.LOGGED]


def test_the_right_answer_of_a_repeated_record_is_stored_once(datasets: LakeDatasets) -> None:
    ingested(datasets, call(1), call(2))
    report = ingested(datasets, call(1, reference="2"), call(2))
    assert (report.traces.duplicate, report.feedback.kept, report.late_references) == (2, 1, 1)
    assert ingested(datasets, call(1, reference="2"), call(2)).late_references == 1, "the same batch has the same counts"
    again = ingested(datasets, call(1, reference="2"), call(3))
    assert (again.feedback.kept, again.feedback.duplicate, again.late_references) == (0, 1, 0)
    assert late(datasets) == [("c1", "2")]


def test_a_right_answer_that_the_trace_has_is_no_late_one(datasets: LakeDatasets) -> None:
    ingested(datasets, call(1, reference="2"))
    report = ingested(datasets, call(1, reference="2"), call(2, reference="3"), call(2, reference="3"))
    assert (report.traces.kept, report.traces.duplicate, report.feedback.read, report.late_references) == (1, 2, 0, 0)
    assert late(datasets) == []


def test_an_old_file_that_is_read_again_does_not_replace_a_newer_right_answer(datasets: LakeDatasets) -> None:
    ingested(datasets, call(1, reference="2"))
    ingested(datasets, call(1, reference="3"), call(1, reference="4"))
    assert late(datasets) == [("c1", "3"), ("c1", "4")]
    report = ingested(datasets, call(1, reference="2"), call(1, reference="3"), call(5))
    assert (report.feedback.duplicate, report.late_references) == (1, 0)
    assert late(datasets) == [("c1", "3"), ("c1", "4")]


def test_a_record_and_its_right_answer_may_be_in_one_batch(datasets: LakeDatasets) -> None:
    report = ingested(datasets, call(1), call(1, reference="2"), call(1, reference="2"))
    assert (report.traces.kept, report.traces.duplicate, report.feedback.kept, report.feedback.duplicate) == (1, 2, 1, 1)
    assert late(datasets) == [("c1", "2")]


def test_a_lost_index_forgets_no_right_answer(tmp_path: Path, datasets: LakeDatasets) -> None:
    ingested(datasets, call(1, reference="2"), call(2))
    ingested(datasets, call(2, reference="3"))
    for file in (tmp_path / "lake").glob("seen.sqlite*"):
        file.unlink()
    report = ingested(datasets, call(1, reference="2"), call(2, reference="3"), call(4))
    assert (report.traces.duplicate, report.feedback.duplicate, report.late_references) == (2, 1, 0)


class Crash(Exception):
    """The process has died."""


def test_a_crash_before_the_right_answers_are_stored_loses_none(
    tmp_path: Path, datasets: LakeDatasets, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Lake.append

    def dies(self: Lake, name: Any, *more: Any) -> Any:
        if name == "feedback":
            raise Crash
        return append(self, name, *more)

    records = [call(1), call(1, reference="2"), call(2, reference="3"), call(2, reference="3")]
    with monkeypatch.context() as dying:
        dying.setattr(Lake, "append", dies)
        with pytest.raises(Crash):
            ingested(datasets, *records)
    whole = ingested(make_datasets(tmp_path / "whole"), *records)
    assert ingested(datasets, *records).model_dump(exclude={"feedback": {"parked"}}) == whole.model_dump(exclude={"feedback": {"parked"}})
    assert late(datasets) == [("c1", "2")]


def test_a_right_answer_without_consent_is_not_stored(datasets: LakeDatasets) -> None:
    ingested(datasets, call(1, consent=False), call(2))
    ingested(datasets, call(1, consent=False, reference="2"), call(2, consent=False, reference="2"))
    assert late(datasets) == []


def test_a_right_answer_with_other_content_is_in_quarantine(datasets: LakeDatasets) -> None:
    ingested(datasets, call(1))
    assert ingested(datasets, call(1, response="A: 3", reference="2")).traces.reasons == {"id_conflict": 1}
    assert late(datasets) == []


def test_the_text_is_masked_with_its_record(datasets: LakeDatasets) -> None:
    ingested(datasets, call(1, messages="Write to ada@example-mail.com"))
    ingested(datasets, call(1, messages="Write to ada@example-mail.com", reference="To ada@example-mail.com"))
    assert late(datasets) == [("c1", "To [EMAIL_1]")]


OBSERVATION = {"id": "o", "traceId": "t", "type": "GENERATION", "startTime": "2026-10-01T00:00:00Z", "input": "1 + 1?", "output": "2"}


@pytest.mark.parametrize(
    ("kind", "first", "again"),
    [
        ("otlp-json", spans(span(1)), spans(span(1, metadata__reference="2"))),
        ("jsonl", *(OBSERVATION | {"metadata": {"consent": True, **more}} for more in ({}, {"reference": "2"}))),
        ("langfuse", *(OBSERVATION | {"metadata": {"consent": True, **more}} for more in ({}, {"reference": "2"}))),
        ("litellm", *(payload(metadata={"requester_metadata": {"consent": True, **more}}) for more in ({}, {"reference": "2"}))),
    ],
)
def test_every_format_brings_late_right_answers(datasets: LakeDatasets, kind: str, first: Any, again: Any) -> None:
    assert datasets.ingest(batch(first, kind=kind)).traces.kept == 1
    report = datasets.ingest(batch(again, kind=kind))
    assert (report.traces.duplicate, report.feedback.kept, report.late_references) == (1, 1, 1)
    assert [text for _, text in late(datasets)] == ["2"]


def test_no_credential_may_send_one_as_feedback() -> None:
    assert not Sender(name="all", roles=tuple(Role)).may_send_feedback(FeedbackKind.LOGGED)


def test_a_batch_without_late_right_answers_reads_no_trace(datasets: LakeDatasets, monkeypatch: pytest.MonkeyPatch) -> None:
    ingested(datasets, call(1))
    monkeypatch.setattr(Lake, "parts", lambda *_: pytest.fail("the lake was read"))
    ingested(datasets, call(1), call(2, reference="3"), call(4))
