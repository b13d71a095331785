"""Tests of live evidence: counts per version, and ratings grouped by user."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ratchet.materializer.metrics import LakeMetrics
from tests.unit.materializer.conftest import make_datasets, signed
from tests.unit.materializer.records import T0, batch, evaluation, log, logs, span, spans

SINCE = datetime.fromtimestamp(T0 / 1e9, UTC)


@pytest.mark.slow
def test_evidence_counts_both_versions_in_the_window(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    ms = 1_000_000

    def call(n: int, version: str, user: str | None, **more: object) -> dict[str, object]:
        return span(n, at=T0 + n * ms, ratchet__model_version=version, user__id=user, **more)  # type: ignore[arg-type]

    failed = call(4, "new", "bob") | {"status": {"code": 2}}
    items = [call(1, "old", "ann"), call(2, "new", "ann"), call(3, "new", "ann"), failed, call(5, "new", None)]
    items += [call(6, "new", "x", ratchet__origin="probe"), call(7, "elsewhere", "x"), call(5000, "new", "x")]
    ratings = [
        log(1, evaluation("user_feedback", 1)),
        log(2, evaluation("user_feedback", 0)),
        log(2, evaluation("user_feedback", 1, at=T0 + 9 * ms)),
        log(3, evaluation("user_feedback", 1, user__id="r1")),
        log(3, evaluation("user_feedback", 0, user__id="r2")),
        log(3, evaluation("user_correction", text="no")),
        evaluation("user_feedback", 1, gen_ai__response__id="r-5") | {"eventName": "gen_ai.evaluation.result"},
        log(6, evaluation("user_feedback", 1)),
    ]
    datasets.ingest(batch(spans(*(signed(tmp_path, item) for item in items)), logs(*ratings)))
    evidence = LakeMetrics(tmp_path / "lake").evidence("old", "new", SINCE, SINCE + timedelta(seconds=1))
    assert (evidence.champion.requests, evidence.champion.errors, evidence.champion.rated) == (1, 0, ((1, 1.0),))
    assert (evidence.candidate.requests, evidence.candidate.errors) == (4, 1)
    assert evidence.candidate.rated == ((1, 1.0), (3, 2.0))  # the anonymous session, and ann with two traces
    assert evidence.candidate.latency_p50_ms == 5.0
    assert sum(n for _, n in evidence.candidate.latencies) == 3, "successful answers only"
    assert (evidence.candidate.sessions, evidence.candidate.users) == (3, 3)


@pytest.mark.slow
def test_a_rater_has_the_same_name_in_both_versions_and_all_windows(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    calls = [("old", "ann", 0), ("new", "ann", 0), ("new", "bob", 0), ("new", "ann", 2), ("old", "bob", 2)]
    items = [
        span(n, at=T0 + second * 10**9 + n, ratchet__model_version=version, user__id=user)
        for n, (version, user, second) in enumerate(calls, 1)
    ]
    ratings = [log(n, evaluation("user_feedback", 1, at=T0 + 3 * 10**9)) for n in range(1, len(calls) + 1)]
    datasets.ingest(batch(spans(*(signed(tmp_path, item) for item in items)), logs(*ratings)))
    metrics = LakeMetrics(tmp_path / "lake")
    first, second = (metrics.evidence("old", "new", SINCE + timedelta(seconds=at), SINCE + timedelta(seconds=at + 1)) for at in (0, 2))
    (ann,) = first.champion.raters
    (bob,) = second.champion.raters
    assert set(first.candidate.raters) == {ann, bob}
    assert second.candidate.raters == (ann,)
    assert "ann" not in ann


def test_refused_requests_are_counted_separately_from_errors(tmp_path: Path) -> None:
    said = {"ratchet__model_version": "new", "gen_ai__output__messages": None, "ratchet__refused": True}
    datasets = make_datasets(tmp_path)
    items = [*(span(n, **said) for n in range(1, 9)), span(9, ratchet__model_version="new")]
    report = datasets.ingest(batch(spans(*(signed(tmp_path, item) for item in items))))
    assert report.traces.kept == 9
    candidate = LakeMetrics(tmp_path / "lake").evidence("old", "new", SINCE, SINCE + timedelta(seconds=1)).candidate
    assert (candidate.requests, candidate.errors, candidate.refused, candidate.served) == (9, 0, 8, 1)


def test_a_session_is_counted_once_and_requests_without_a_session_each(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    sessions = ["s1", "s1", "s2", None, None]
    items = [span(n, ratchet__model_version="new", gen_ai__conversation__id=session) for n, session in enumerate(sessions, 1)]
    datasets.ingest(batch(spans(*(signed(tmp_path, item) for item in items))))
    candidate = LakeMetrics(tmp_path / "lake").evidence("old", "new", SINCE, SINCE + timedelta(seconds=1)).candidate
    assert (candidate.requests, candidate.sessions) == (5, 4)


def test_versions_without_traffic_have_zero_counts(tmp_path: Path) -> None:
    evidence = LakeMetrics(tmp_path / "lake").evidence("a", "b", SINCE, SINCE + timedelta(hours=1))
    assert (evidence.candidate.requests, evidence.candidate.latency_p95_ms, evidence.candidate.rated) == (0, None, ())
