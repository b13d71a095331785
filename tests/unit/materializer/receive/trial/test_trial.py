"""Tests of the examples of a trial: no texts of people who refuse, no ids of people, and the right record of a part of a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.data.decoding import Limits
from ratchet.contracts.ports import TraceSource
from ratchet.materializer.receive.trial.trial import SourceTrial, try_source
from tests.unit.materializer.records import T0, attribute, batch, span, spans

LIMITS = Limits(now=T0 // 1000 + 10**12, assume_consent=True)


class Batches(TraceSource):
    """A source of these batches."""

    name = "given"

    def __init__(self, *given: RawBatch) -> None:
        self._given = given

    def batches(self) -> Iterator[RawBatch]:
        yield from self._given

    def done(self, batch: RawBatch) -> None:
        return None


def tried(*given: RawBatch) -> SourceTrial:
    return try_source(Batches(*given), LIMITS)


def shown(trial: SourceTrial) -> str:
    return json.dumps([(one.record, one.row["messages"], one.row["answer"], one.row["user"], one.row["session"]) for one in trial.examples])


def test_a_record_in_which_a_person_refuses_is_no_example() -> None:
    refused = spans(span(1, "yes 1"), span(2, "refused 2", metadata__consent=False))
    found = tried(batch(refused, spans(span(3, "refused 3", metadata__consent=False)), spans(span(4, "yes 4"))))
    assert [one.position.partition(", ")[2] for one in found.examples] == ["line 3, span 0"]
    assert "refused" not in shown(found)
    assert "yes 4" in shown(found)


def test_a_record_with_a_refusing_agent_is_no_example() -> None:
    agent = span(1, gen_ai__operation__name="invoke_agent", gen_ai__input__messages=None, gen_ai__output__messages=None)
    agent["attributes"] += [attribute("consent", False), attribute("note", "refused")]
    for above in ("", "7" * 16):  # a root refuses for its whole trace, any other span for the calls below it
        found = tried(batch(spans(agent | {"parentSpanId": above}, span(2, "beside")), spans(span(3, "yes"))))
        assert [one.position.partition(", ")[2] for one in found.examples] == ["line 2, span 0"]


def test_the_ids_of_all_people_of_a_record_are_replaced_also_inside_of_texts() -> None:
    one = span(1, "I am person-1", user__id="person-1", session__id="s1", tag=json.dumps({"who": "s1", "other": ["person-22"]}))
    two = span(2, "hello", user__id="person-22", note="of person-22 and person-1", s="ss1")
    found = tried(batch(spans(one, two)))
    assert len(found.examples) == 1
    assert "person-" not in shown(found)
    assert '"s1' not in shown(found)
    assert "[SESSION]" in shown(found)
    assert "ss1" in shown(found)  # a short id is not replaced inside of words


def test_the_examples_of_a_part_of_a_file_are_its_own_records() -> None:
    lines: list[Any] = [spans(span(number, f"prompt {number}")) for number in range(1, 4)]
    found = tried(replace(batch(*lines), offset=1000, first=7))
    assert [f"prompt {n}" in json.dumps(one.record) for n, one in enumerate(found.examples, 1)] == [True] * 3
    assert len(found.examples) == 3


def test_a_call_that_occurs_again_counts_as_ingest_counts_it() -> None:
    found = tried(batch(spans(span(1), span(1), span(1, answer="A: 3"))), batch(spans(span(1), span(2))))
    assert (found.kept, found.coverage.calls) == (2, 2)
    assert found.skipped == {"duplicate": 2}
    assert [(reason, count) for (reason, _), count in found.quarantined.items()] == [("id_conflict", 1)]


def test_a_later_version_of_an_observation_has_a_reason_of_its_own() -> None:
    row = {"id": "o", "traceId": "t", "type": "GENERATION", "startTime": "2026-09-01T00:00:00Z", "input": "q", "output": "a"}
    found = tried(batch(row, row | {"output": "a better answer"}, kind="langfuse"))
    assert [(reason, count) for (reason, _), count in found.quarantined.items()] == [("later_version", 1)]
