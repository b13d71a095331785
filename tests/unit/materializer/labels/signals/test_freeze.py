"""Tests of signals in a snapshot: rules of feedback, consent and erasure, and what a section about them says."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.datasets import Snapshot
from ratchet.contracts.data.records import Signal
from ratchet.contracts.data.senders import Role, Sender
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.erasure.lake_rows import LineRows, Target
from ratchet.materializer.labels.signals.agreement import LEAST_RATED
from ratchet.materializer.metrics import LakeMetrics
from tests.unit.materializer.conftest import NOW, make_datasets, make_loop, pseudonym_of, signed
from tests.unit.materializer.records import batch, evaluation, log, logs, raw, span, spans
from tests.unit.materializer.small_datasets import HELD, LATER, TRAIN, questions

pytestmark = pytest.mark.slow


def _datasets(folder: Path, **signals: Any) -> LakeDatasets:
    return make_datasets(folder, make_loop(rewards=[{"name": "user_feedback"}], signals=signals))


def _jsonl(datasets: LakeDatasets, *rows: dict[str, Any]) -> Any:
    given = [{"timestamp": 1_790_000_000, "consent": True, "response": "A", **row} for row in rows]
    return datasets.ingest(raw("".join(json.dumps(row) + "\n" for row in given).encode(), "app", "jsonl"))


def _freeze(datasets: LakeDatasets) -> Snapshot:
    datasets.ingest(batch(spans(span(900, HELD, metadata__reference="1"))))
    return datasets.freeze("s", LATER, datasets.edition(1))


def _answers(snapshot: Snapshot) -> dict[str, int]:
    return {belief.signal.value: belief.answers for belief in snapshot.signals}


def test_signals_of_all_forms_are_stored_once_each(tmp_path: Path) -> None:
    datasets = _datasets(tmp_path)
    stated = [evaluation("user_copied", user__id="user-1"), evaluation("user_thanked", 1, user__id="user-1")]
    datasets.ingest(batch(spans(span(1, TRAIN[0], events=stated))))
    event = evaluation("tool_error", user__id="user-1")
    report = datasets.ingest(batch(logs(log(1, event), log(1, event), log(1, evaluation("user_edited", 0, user__id="user-1")))))
    assert (report.feedback.kept, report.feedback.duplicate, report.feedback.reasons) == (1, 1, {"absent_signal": 1})
    report = _jsonl(
        datasets, {"id": "j", "messages": TRAIN[1], "user_id": "u", "signals": ["copied", "edited", "copied", "liked", "session.thanked"]}
    )
    assert (report.feedback.kept, report.feedback.duplicate, report.feedback.quarantined) == (2, 1, 2)
    assert report.feedback.adds_up
    snapshot = _freeze(datasets)
    assert _answers(snapshot) == {"edited": 1, "copied": 2, "thanked": 1, "tool_error": 1}
    assert snapshot.counts["feedback:signal"] == 5
    stored = datasets.lake.scan("feedback")
    assert set(stored["kind"]) == {"signal"}
    assert stored["text"].null_count() == len(stored)


def test_a_signal_needs_the_role_and_the_user_of_feedback(tmp_path: Path) -> None:
    datasets = _datasets(tmp_path)
    events = logs(log(1, evaluation("user_copied", user__id="user-1")), log(1, evaluation("user_edited", user__id="mallory")))
    datasets.ingest(batch(spans(span(1, TRAIN[0]))))
    refused = datasets.ingest(replace(batch(events), sender=Sender(name="r", roles=(Role.REVIEW,))))
    assert refused.feedback.reasons == {"role_not_allowed": 2}
    datasets.ingest(replace(batch(events), sender=Sender(name="app", roles=(Role.FEEDBACK,))))
    snapshot = _freeze(datasets)
    assert _answers(snapshot) == {"copied": 1}
    assert snapshot.counts["feedback:not_the_user"] == 1


def test_without_consent_nothing_is_stored_or_computed(tmp_path: Path) -> None:
    datasets = _datasets(tmp_path)
    turns = {"session_id": "s", "user_id": "u"}
    again = {"id": "b", "messages": TRAIN[0], "timestamp": 1_790_000_060, **turns}
    report = _jsonl(datasets, {"id": "a", "messages": TRAIN[0], "consent": False, "signals": ["copied"], **turns}, again)
    assert report.feedback.reasons == {"no_consent": 1}
    assert _answers(_freeze(datasets)) == {}


def _session() -> list[dict[str, Any]]:
    """Return two sessions of two users: each regenerates an answer."""
    return [
        {
            "id": f"{user}{n}",
            "messages": TRAIN[place],
            "response": f"A{n}",
            "timestamp": 1_790_000_000 + 60 * n,
            "session_id": user,
            "user_id": user,
        }
        for place, user in enumerate(("ada", "eve"))
        for n in range(2)
    ]


def test_signals_of_sessions_are_computed_and_not_stored(tmp_path: Path) -> None:
    datasets = _datasets(tmp_path)
    _jsonl(datasets, *_session())
    snapshot = _freeze(datasets)
    assert _answers(snapshot) == {"session.regenerated": 2}
    assert "feedback:signal" not in snapshot.counts
    assert datasets.lake.scan("feedback").is_empty()


def test_a_refusal_and_an_erasure_remove_signals(tmp_path: Path) -> None:
    datasets = _datasets(tmp_path)
    _jsonl(datasets, *(row | {"signals": ["copied"]} for row in _session()))
    assert _answers(_freeze(datasets)) == {"copied": 4, "session.regenerated": 2}
    _jsonl(datasets, {"id": "x", "consent_for": "user", "user_id": "eve", "consent": False, "timestamp": 1_790_000_500})
    assert _answers(datasets.freeze("refused", LATER, datasets.edition(1))) == {"copied": 2, "session.regenerated": 1}
    target = Target(users=frozenset({pseudonym_of(datasets, "u", "ada")}))
    with datasets.lake.writing():
        LineRows(datasets.lake, target).remove(datasets._seen)
    assert datasets.lake.scan("feedback").height == 2
    assert _answers(datasets.freeze("erased", LATER, datasets.edition(1))) == {}


def test_the_order_of_arrival_changes_nothing(tmp_path: Path) -> None:
    found = []
    for place, rows in enumerate((_session(), _session()[::-1])):
        datasets = _datasets(tmp_path / str(place))
        for row in rows:
            _jsonl(datasets, row | {"signals": ["copied", "thanked"]})
        snapshot = _freeze(datasets)
        found.append((snapshot.samples, snapshot.signals))
    assert found[0] == found[1]


def test_a_used_signal_never_changes_a_rating(tmp_path: Path) -> None:
    people = LEAST_RATED * 4
    rows = [
        {"id": str(n), "messages": text, "response": f"A{n}", "user_id": f"u{n}", "feedback": n % 2, "signals": ["copied"] * (n % 2)}
        for n, text in enumerate(questions(False, people))
    ]
    contrary = {"id": "x", "messages": "another question, which is trained on", "user_id": "x", "feedback": 0, "signals": ["copied"]}
    rewards = []
    for use in ([], ["copied"]):
        datasets = _datasets(tmp_path / str(len(use)), use=use)
        _jsonl(datasets, *rows, contrary)
        snapshot = _freeze(datasets)
        rewards.append(snapshot.samples)
        assert [belief.used for belief in snapshot.signals if belief.signal is Signal.COPIED] == [bool(use)]
    assert rewards[0] == rewards[1]


def test_signals_are_no_evidence_of_a_rollout_and_no_reference_of_the_gate(tmp_path: Path) -> None:
    found = []
    for place, events in enumerate(([], [evaluation("user_copied", user__id="user-1"), evaluation("user_edited", user__id="user-1")])):
        folder = tmp_path / str(place)
        datasets = _datasets(folder, use=["copied", "edited"])
        traced = signed(folder, span(1, TRAIN[0], ratchet__model_version="v-1"))
        datasets.ingest(
            batch(spans(traced, span(900, HELD, metadata__reference="1")), logs(*(log(n, one) for n in (1, 900) for one in events)))
        )
        assert len(datasets.lake.scan("feedback")) == 2 * len(events)
        evidence = LakeMetrics(datasets.lake.root).evidence("v-1", "v-2", NOW - timedelta(days=99), LATER)
        assert evidence.champion.requests == 1
        found.append((evidence, datasets.edition(1).prompts))
    assert found[0] == found[1]
