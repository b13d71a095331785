"""Tests of consent as a state: the newest statement counts, whatever the order in which records arrive."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import IngestReport
from ratchet.contracts.data.records import CONSENT, TRACES
from ratchet.contracts.data.senders import Role, Sender
from ratchet.contracts.errors import Inconclusive
from ratchet.materializer.consent import settle
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.dialects.statement import Statement, newest
from ratchet.materializer.lake.schemas import frame_of
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import T0, attribute, batch, evaluation, log, logs, span, spans
from tests.unit.materializer.small_datasets import LATER, TRAIN, frozen, questions, rows

SHOP = Sender(name="shop", roles=(Role.TRACES, Role.FEEDBACK))
DESK = Sender(name="desk", roles=(Role.FEEDBACK,))
OPERATOR = Sender(name="ops", roles=(Role.OPERATOR,))
SECOND = 10**9


def said(name: str, given: bool, after: int, **more: Any) -> dict[str, Any]:
    """A record that only states consent, `after` seconds after the calls."""
    return evaluation(name, float(given), at=T0 + after * SECOND, **more) | {"eventName": "gen_ai.evaluation.result"}


def when(after: float) -> str:
    return (datetime.fromtimestamp(T0 / SECOND, UTC) + timedelta(seconds=after)).isoformat()


def deliver(datasets: LakeDatasets, *requests: Any, sender: Sender | None = SHOP) -> IngestReport:
    report = datasets.ingest(replace(batch(*requests), sender=sender))
    assert report.traces.adds_up
    assert report.feedback.adds_up
    return report


def used(datasets: LakeDatasets, name: str) -> set[str]:
    """Freeze a snapshot now, and return the answers in it."""
    return {row["answer"] for row in rows(datasets, frozen(datasets, name=name).samples)}


# --- the state as a pure function


def _statement(draw: st.DrawFn) -> dict[str, Any]:
    subject, identity = draw(st.sampled_from([("trace", "t"), ("response", "r"), ("session", "s"), ("user", "u"), ("user", "other")]))
    operator = draw(st.booleans())
    sender = None if operator else draw(st.sampled_from(["traces/a", "traces/b"]))
    known = {"source": "gateway", "subject": subject, "id": identity, "ingested": 0, "batch": "b", "sender": sender, "operator": operator}
    return known | {"given": draw(st.booleans()), "time": draw(st.integers(1, 4))}


_TRACE = dict.fromkeys(column.name for column in TRACES) | {
    **{"source": "gateway", "id": "t", "response_id": "r", "session": "s", "user": "u"},
    **{"time": 2, "ingested": 0, "batch": "b", "origin": "traffic", "status": "ok", "sender": "traces/a"},
}


@pytest.mark.slow
@given(statements=st.lists(st.composite(_statement)(), max_size=6), own=st.booleans(), seed=st.integers(0, 99))
def test_the_newest_statement_counts_a_refusal_wins_a_tie_and_the_order_does_not_matter(
    statements: list[dict[str, Any]], own: bool, seed: int
) -> None:
    heard = [one for one in statements if one["id"] != "other"]
    refusals = [one["time"] for one in heard if not one["given"]]
    consents = [one["time"] for one in heard if one["given"] and (one["operator"] or one["sender"] == "traces/a")] + [2] * own
    expected = bool(consents) and max(consents) > max(refusals, default=0)
    traces = frame_of([_TRACE | {"consent": own}], TRACES)
    shuffled = random.Random(seed).sample(statements, len(statements))
    for order in (statements, shuffled, statements + shuffled):
        [row] = settle(traces, frame_of(order, CONSENT)).to_dicts()
        assert (row["consent"], row["refused"]) == (expected, bool(refusals) and not expected)


def test_of_two_statements_of_one_record_the_newer_counts_and_a_refusal_wins_a_tie() -> None:
    yes, no, later = Statement(True, 5), Statement(False, 5), Statement(True, 6)
    assert newest((yes, no)) == newest((no, yes, None)) == no
    assert newest((no, later)) == later
    assert newest((None, None)) is None


# --- from the request to the snapshot

ASKED = "metadata.consent"
PROMPTS = questions(False, 100)


def records(n: int) -> dict[str, tuple[Sender, dict[str, Any]]]:
    """Records about trace `n` of user `n`, by name."""
    answer = {"prompt": PROMPTS[n], "answer": f"A: {n}"}
    return {
        "silent": (SHOP, spans(span(n, **answer, metadata__consent=None))),
        "refused": (SHOP, spans(span(n, **answer, metadata__consent=False))),
        "given": (SHOP, spans(span(n, **answer))),
        "given later": (SHOP, spans(span(n, **answer, metadata__consent_time=when(20)))),
        "trace withdrawn": (DESK, logs(log(n, said("trace_consent", False, 10)))),
        "user withdrawn": (DESK, logs(said("user_consent", False, 15, user__id=f"user-{n}"))),
        "forged consent": (Sender(name="thief", roles=(Role.TRACES,)), logs(said("user_consent", True, 99, user__id=f"user-{n}"))),
        "operator": (OPERATOR, logs(log(n, said("trace_consent", True, 30)))),
    }


CASES: dict[tuple[str, ...], bool] = {
    ("silent", "given"): True,
    ("refused", "given"): False,
    ("silent", "given", "trace withdrawn"): False,
    ("given", "user withdrawn", "forged consent"): False,
    ("silent", "given later", "trace withdrawn", "user withdrawn"): True,
    ("refused", "given", "trace withdrawn", "operator"): True,
}


@pytest.mark.slow
def test_any_order_of_delivery_also_with_repetitions_gives_the_same_state(tmp_path: Path) -> None:
    """All orders of all cases share one lake: in each round, each of them delivers its next record, and some of them an earlier one."""
    datasets = make_datasets(tmp_path)
    orders = [(case, order) for case in CASES for order in permutations(case)]
    expected = {f"A: {n}" for n, (case, _) in enumerate(orders, 1) if CASES[case]}
    for step in range(4):
        by_sender: dict[Sender, list[Any]] = {}
        for n, (_, order) in enumerate(orders, 1):
            again = [order[step // 2]] if n % 3 == 0 else []
            for name in (*order[step : step + 1], *again):
                sender, request = records(n)[name]
                by_sender.setdefault(sender, []).append(request)
        for sender, requests in by_sender.items():
            deliver(datasets, *requests, sender=sender)
    assert used(datasets, "s") == expected


@pytest.mark.slow
def test_a_withdrawal_counts_at_once_for_everything_that_comes_from_the_trace(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    corrected = [evaluation("user_correction", text="1 + 1 = 2\nA: 2", user__id="user-1")]
    first = frozen(datasets, span(1, TRAIN[0], "A: 3", corrected), span(2, TRAIN[1], "A: 4"), name="before")
    assert {row["answer"] for row in rows(datasets, first.samples)} == {"A: 3", "1 + 1 = 2\nA: 2", "A: 4"}
    report = deliver(datasets, logs(log(1, said("trace_consent", False, 60))), sender=DESK)
    assert (report.feedback.kept, report.consent_changed) == (1, 1)
    second = frozen(datasets, name="after")
    assert {row["answer"] for row in rows(datasets, second.samples)} == {"A: 4"}
    assert [row["reference"] for row in rows(datasets, second.prompts)] == [None]
    assert second.counts["out:consent"] == 1
    again = datasets.ingest(replace(batch(logs(log(1, said("trace_consent", False, 60))), b""), sender=DESK))
    assert (again.feedback.duplicate, again.consent_changed) == (1, 0)


@pytest.mark.slow
def test_a_withdrawal_before_the_plan_changes_the_training_set_of_the_open_cycle(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    rated = [evaluation("user_correction", text="A: 2", user__id="user-1")]
    snapshot = frozen(datasets, span(1, TRAIN[0], "A: 3", rated), span(2, TRAIN[1], "A: 4", metadata__reference="4"))
    whole = datasets.assemble("planned", snapshot, None)
    assert (whole.facts.pairs, whole.snapshot) == (1, snapshot.content)
    deliver(datasets, logs(said("user_consent", False, 60, user__id="user-1")), sender=DESK)
    less = datasets.assemble("not yet planned", snapshot, None)
    assert (less.facts.pairs, less.facts.samples, less.facts.corrections) == (0, 1, 0)
    assert [row["answer"] for row in rows(datasets, less.demonstrations)] == ["A: 4"]
    assert [row["reference"] for row in rows(datasets, less.prompts)] == ["4"]
    assert datasets.assemble("planned", snapshot, None) == whole, "a result that is pinned stays as it is"


@pytest.mark.slow
def test_feedback_of_a_user_who_withdrew_is_not_used_on_traces_of_others(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    label = log(1, evaluation("reviewer_reference", text="7", user__id="rev-1"))
    deliver(datasets, spans(span(1, TRAIN[0], "A: 3")), logs(label), sender=OPERATOR)
    assert [row["reference"] for row in rows(datasets, frozen(datasets, name="a").prompts)] == ["7"]
    deliver(datasets, logs(said("user_consent", False, 60, user__id="rev-1")), sender=DESK)
    later = frozen(datasets, name="b")
    assert [row["reference"] for row in rows(datasets, later.prompts)] == [None]
    assert later.counts["feedback:no_consent"] == 1


@pytest.mark.slow
def test_an_edition_loses_the_prompts_and_references_of_traces_that_are_withdrawn(tmp_path: Path) -> None:
    datasets, (one, two, three) = make_datasets(tmp_path), questions(True, 3)
    reviewed = log(3, evaluation("reviewer_reference", text="9", user__id="rev-1"))
    asked = [span(1, one, metadata__reference="1"), span(2, two, metadata__reference="2"), span(3, three), span(4, two)]
    deliver(datasets, spans(*asked), logs(reviewed), sender=OPERATOR)
    before = datasets.edition(1)
    assert {row["reference"] for row in rows(datasets, before.prompts)} == {"1", "2", "9"}
    deliver(datasets, logs(log(1, said("trace_consent", False, 60))), sender=DESK)
    assert {row["reference"] for row in rows(datasets, datasets.edition(1).prompts)} == {"2", "9"}
    deliver(datasets, logs(log(2, said("trace_consent", False, 60)), said("user_consent", False, 60, user__id="rev-1")), sender=DESK)
    with pytest.raises(Inconclusive, match="consent was withdrawn for all of its prompts"):
        datasets.edition(1)
    deliver(datasets, logs(log(1, said("trace_consent", True, 90))), sender=OPERATOR)
    after = datasets.edition(1)
    assert (after.number, after.size) == (1, 1)
    assert rows(datasets, after.prompts) == [row for row in rows(datasets, before.prompts) if row["reference"] == "1"]


@pytest.mark.slow
def test_content_that_follows_a_record_without_consent_is_kept_once(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    silent, whole = span(1, TRAIN[0], "A: 3", metadata__consent=None), span(1, TRAIN[0], "A: 3")
    deliver(datasets, spans(silent))
    assert used(datasets, "a") == set()
    report = deliver(datasets, spans(whole))
    assert (report.traces.kept, report.traces.duplicate, report.consent_changed) == (1, 0, 1)
    again = deliver(datasets, spans(silent), spans(whole), b"{")
    assert (again.traces.kept, again.traces.duplicate, again.consent_changed) == (0, 2, 0)
    assert used(datasets, "b") == {"A: 3"}
    correction = deliver(datasets, logs(log(1, evaluation("user_correction", text="A: 2", user__id="user-1"))))
    assert (correction.feedback.kept, correction.feedback.skipped) == (1, 0)
    other = deliver(datasets, spans(span(1, TRAIN[0], "A: 99")))
    assert other.traces.reasons == {"id_conflict": 1}


@pytest.mark.slow
def test_a_later_consent_counts_although_its_record_is_a_duplicate(tmp_path: Path) -> None:
    """With assumed consent, the content of a record that does not mention consent is stored."""
    datasets = make_datasets(tmp_path, make_loop(governance={"consent": "assumed"}))
    silent = span(1, TRAIN[0], "A: 3", metadata__consent=None)
    deliver(datasets, spans(silent))
    assert used(datasets, "a") == {"A: 3"}
    deliver(datasets, logs(said("user_consent", False, 5, user__id="user-1")), sender=DESK)
    assert used(datasets, "b") == set()
    given = span(1, TRAIN[0], "A: 3", metadata__consent_time=when(9))
    report = deliver(datasets, spans(given))
    assert (report.traces.duplicate, report.consent_changed) == (1, 1)
    assert used(datasets, "c") == {"A: 3"}


@pytest.mark.slow
def test_a_consent_that_was_given_before_a_withdrawal_does_not_lift_it_although_the_call_is_later(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    deliver(datasets, logs(said("user_consent", False, 10, user__id="user-1")), sender=DESK)
    late = {"at": T0 + 60 * SECOND, "user__id": "user-1"}
    deliver(datasets, spans(span(1, TRAIN[0], "A: 3", **late, metadata__consent_time=when(5)), span(2, TRAIN[1], "A: 4", **late)))
    assert used(datasets, "a") == {"A: 4"}


@pytest.mark.parametrize(
    ("resource", "own", "agreed"),
    [
        (True, None, True),
        (False, None, False),
        (None, True, True),
        (True, False, False),
        (False, True, False),
    ],
)
def test_consent_in_the_resource_counts_and_a_refusal_on_either_side_wins(
    tmp_path: Path, resource: bool | None, own: bool | None, agreed: bool
) -> None:
    datasets = make_datasets(tmp_path)
    request = spans(span(1, TRAIN[0], "A: 3", metadata__consent=own))
    request["resourceSpans"][0]["resource"] = {"attributes": [] if resource is None else [attribute(ASKED, resource)]}
    deliver(datasets, request)
    [row] = settle(datasets.lake.scan("traces"), datasets.lake.scan("consent")).to_dicts()
    assert (row["consent"], row["messages"] is not None) == (agreed, agreed)


@pytest.mark.slow
def test_a_refusal_of_the_resource_counts_also_against_a_newer_consent_of_its_span(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    request = spans(span(1, TRAIN[0], "A: 3", metadata__consent_time=when(0.001)))
    request["resourceSpans"][0]["resource"] = {"attributes": [attribute(ASKED, False)]}
    deliver(datasets, request)
    assert used(datasets, "a") == set()


@pytest.mark.parametrize("resource", [7, {"attributes": 7}, {"attributes": [7, {"key": ASKED}]}, None, []])
def test_a_damaged_resource_gives_no_consent(tmp_path: Path, resource: Any) -> None:
    datasets = make_datasets(tmp_path)
    request = spans(span(1, metadata__consent=None))
    request["resourceSpans"][0]["resource"] = resource
    deliver(datasets, request)
    assert not datasets.lake.scan("traces")["consent"].any()


@pytest.mark.slow
def test_files_of_the_operator_state_consent_for_traces_sessions_and_users(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    record = {"timestamp": "2026-10-01T00:00:00Z", "response": "A: 3", "consent": True}
    traces = [record | {"id": f"t{n}", "user_id": f"u{n}", "session_id": f"s{n}", "messages": TRAIN[n]} for n in range(4)]
    refusal = {"timestamp": "2026-10-02T00:00:00Z", "consent": False}
    statements = [
        refusal | {"consent_for": "trace", "id": "t0"},
        refusal | {"consent_for": "session", "session_id": "s1"},
        refusal | {"consent_for": "user", "user_id": "u2"},
        refusal | {"consent_for": "user", "user_id": "nobody"},
        refusal | {"consent_for": "user"},
        refusal | {"consent_for": "everything", "id": "t0"},
    ]
    report = datasets.ingest(batch(*statements, *traces, source="app", kind="jsonl"))
    assert report.feedback.adds_up
    assert (report.feedback.kept, report.feedback.reasons) == (4, {"missing_id": 1, "bad_value": 1})
    state = settle(datasets.lake.scan("traces"), datasets.lake.scan("consent")).sort("id")
    assert state["refused"].to_list() == [True, True, True, False]
    assert "nobody" not in str(datasets.lake.scan("consent").to_dicts())


@pytest.mark.slow
def test_a_bare_refusal_in_a_file_is_no_conflict(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    record = {"id": "t1", "timestamp": "2026-10-01T00:00:00Z"}
    whole = record | {"messages": TRAIN[0], "response": "A: 3", "consent": True, "model": "m"}
    datasets.ingest(batch(whole, source="app", kind="jsonl"))
    report = datasets.ingest(batch(record | {"consent": False}, source="app", kind="jsonl"))
    assert (report.traces.duplicate, report.traces.reasons, report.consent_changed) == (1, {}, 1)
    assert used(datasets, "a") == set()


def test_a_record_that_states_consent_unclearly_is_a_refusal(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    vague = [evaluation("user_consent", user__id="a"), evaluation("user_consent", 0.9, user__id="b")]
    labelled = evaluation("user_consent", user__id="c", gen_ai__evaluation__score__label="given")
    events = [event | {"eventName": "gen_ai.evaluation.result"} for event in (*vague, labelled)]
    deliver(datasets, logs(*events, said("session_consent", True, 1)), sender=OPERATOR)
    assert sorted(datasets.lake.scan("consent")["given"]) == [False, False, True]


@pytest.mark.slow
def test_a_freeze_that_is_repeated_after_a_crash_uses_what_was_withdrawn_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = make_datasets(tmp_path)
    deliver(datasets, spans(span(1, TRAIN[0], "A: 3"), span(900, questions(True, 1)[0], metadata__reference="1")))
    edition = datasets.edition(1)
    with monkeypatch.context() as patch:
        patch.setattr(type(datasets.artifacts), "bind", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            datasets.freeze("s", LATER, edition)
    assert datasets.lake.pin("traces", "s") is not None
    deliver(datasets, logs(log(1, said("trace_consent", False, 60))), sender=DESK)
    assert rows(datasets, datasets.freeze("s", LATER, edition).samples) == []
