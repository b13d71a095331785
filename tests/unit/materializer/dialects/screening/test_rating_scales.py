"""A source that rates from 1 to 5 must not have its worst answers taken for the best ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.materializer.dialects.decode import decode
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import T0, batch, evaluation, log, logs

LIMITS = Limits(now=T0 // 1000 + 10**12, assume_consent=True)
STARS = [1, 2, 3, 4, 5, 1]


def rated(value: Any, number: int = 0, **more: Any) -> dict[str, Any]:
    return {"id": f"r{number}", "timestamp": T0, "messages": "What is due?", "response": "Nothing.", "feedback": value} | more


def read(values: list[Any], scale: tuple[float, float] | None = None, **more: Any) -> Decoded:
    rows = [rated(value, number, **more) for number, value in enumerate(values)]
    return decode(batch(*rows, kind="jsonl"), replace(LIMITS, rating_scale=scale))


def values_of(found: Decoded) -> list[float]:
    return [row["value"] for row in found.feedback]


@pytest.mark.parametrize("more", [{}, {"reference": "Nothing."}], ids=["plain", "not plain"])
def test_all_ratings_of_a_batch_on_a_scale_of_its_own_are_refused(more: dict[str, Any]) -> None:
    found = read(STARS, **more)
    assert len(found.traces) == len(STARS), "the calls are kept"
    assert found.feedback == []
    assert [(bad.kind, bad.reason) for bad in found.bad] == [("feedback", "rating_scale")] * len(STARS)
    assert {bad.position for bad in found.bad} == {f"line {line}, feedback" for line in range(1, 7)}
    assert all(bad.place is not None for bad in found.bad), "each can be read again"
    assert all("rating_scale" in bad.detail for bad in found.bad)


@pytest.mark.parametrize("more", [{}, {"reference": "Nothing."}], ids=["plain", "not plain"])
def test_a_stated_scale_says_what_the_numbers_mean(more: dict[str, Any]) -> None:
    assert values_of(read(STARS, (1, 5), **more)) == [0, 0.25, 0.5, 0.75, 1, 0]
    assert values_of(read(STARS, (5, 1), **more)) == [1, 0.75, 0.5, 0.25, 0, 1]
    assert values_of(read([-1, 1, "-1"], (-1, 1), **more)) == [0, 1, 0]
    assert values_of(read([True, False, "like", "down", None], (1, 5), **more)) == [1, 0, 1, 0]
    found = read([0, 5, 6], (1, 5), **more)
    assert values_of(found) == [1]
    assert [(bad.reason, "outside of the stated scale from 1 to 5" in bad.detail) for bad in found.bad] == [("bad_value", True)] * 2


def test_a_single_mistake_refuses_no_other_rating() -> None:
    found = read([5, *[0, 1] * 10])
    assert len(found.feedback) == 20
    assert [bad.reason for bad in found.bad] == ["rating_scale"]
    assert len(read([7, 1, 3]).feedback) == 1, "two of three may be mistakes as well"


def test_other_feedback_of_the_batch_is_kept() -> None:
    found = read([1, 4, 5, 5], correction="Ten euros.", signals=["copied"])
    assert Counter(row["kind"] for row in found.feedback) == {"correction": 4, "signal": 4}
    assert len(found.bad) == 4


def test_evaluations_have_the_scale_of_their_source() -> None:
    sent = batch(logs(*(log(stars, evaluation("user_feedback", stars)) for stars in (1, 2, 3, 5))))
    refused = decode(sent, LIMITS)
    assert (len(refused.feedback), len(refused.bad)) == (0, 4)
    assert values_of(decode(sent, replace(LIMITS, rating_scale=(1, 5)))) == [0, 0.25, 0.5, 1]


def test_quarantined_ratings_are_stored_on_their_scale_once_it_is_stated(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(governance={"consent": "assumed"}))
    sent = batch(*(rated(stars, number) for number, stars in enumerate(STARS)), source="app", kind="jsonl")
    report = datasets.ingest(sent)
    assert (report.traces.kept, report.feedback.kept, report.feedback.quarantined) == (6, 0, 6)
    assert report.feedback.reasons == {"rating_scale": 6}
    waiting = [entry.id for entry in datasets.quarantine.entries()]
    early = datasets.quarantine.replay(waiting)
    assert {one.outcome for one in early.entries} == {"bad"}, "alone, a 1 is not known to be of another scale"
    assert early.stored == 0
    source = {"name": "app", "kind": "jsonl", "path": "in", "rating_scale": [1, 5]}
    datasets = make_datasets(tmp_path, make_loop(governance={"consent": "assumed"}, sources=[source]))
    assert {one.outcome for one in datasets.quarantine.replay(waiting).entries} == {"resolved"}
    assert sorted(datasets.lake.scan("feedback")["value"].to_list()) == [0, 0, 0.25, 0.5, 0.75, 1]
