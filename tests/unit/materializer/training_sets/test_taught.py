"""Tests of answers of teachers from the lake to the training set: weights, what people say first, and what they never decide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.datasets import Snapshot
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.dialects.decode import BUILT_IN
from ratchet.materializer.dialects.review import ReviewDialect
from ratchet.materializer.labels.teachers import bounds
from tests.builders import teacher_section
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import batch, evaluation, log, logs, span, spans
from tests.unit.materializer.small_datasets import HELD, LATER, questions, rows

pytestmark = pytest.mark.slow

QUESTIONS = questions(False, 60)
KNOWN, MISSING = QUESTIONS[:40], QUESTIONS[40:]


@pytest.fixture
def datasets(tmp_path: Path) -> LakeDatasets:
    return taught(tmp_path)


def taught(folder: Path, **more: Any) -> LakeDatasets:
    """Datasets of a line with a teacher. The questions differ in a number only, so they are no near-duplicates here."""
    holdout = {"near_duplicates": False, **more.get("holdout", {})}
    loop = make_loop(teacher=teacher_section(min_agreement=0.7), snapshot={"pairs_per_person": 1000}, holdout=holdout)
    made = make_datasets(folder, loop)
    made.dialects = {**BUILT_IN, "review": ReviewDialect()}
    return made


def answered(*pairs: tuple[int, str], version: str = "v1") -> bytes:
    """Answers of a teacher to the questions of spans."""
    lines = [{"trace": f"{n:032x}:{n:016x}", "answer": text, "teacher": version, "time": "2026-10-05T00:00:00Z"} for n, text in pairs]
    return b"\n".join(json.dumps(line).encode() for line in lines)


def frozen(datasets: LakeDatasets, *events: Any, wrong: int = 0, more: bytes | None = None) -> Snapshot:
    """Freeze disliked answers to all questions, and answers of a teacher, which is wrong on the first `wrong` known ones."""
    disliked = evaluation("user_feedback", 0.0, user__id="user-1")
    asked = [span(n, text, "A: 1", (disliked,), user__id="user-1", metadata__reference="7") for n, text in enumerate(KNOWN, 1)]
    asked += [span(n, text, "A: 1", (disliked, *events), user__id="user-1") for n, text in enumerate(MISSING, 41)]
    datasets.ingest(batch(spans(span(900, HELD, metadata__reference="1"), *asked)))
    given = [(n, "A: 8" if n <= wrong else "A: 7") for n in range(1, 61)]
    datasets.ingest(batch(answered(*given), kind="review"))
    if more is not None:
        datasets.ingest(batch(more, kind="review"))
    return datasets.freeze("s", LATER, datasets.edition(1))


def test_the_estimated_error_is_the_weight_of_demonstrations_and_pairs(datasets: LakeDatasets) -> None:
    snapshot = frozen(datasets, wrong=2)
    low = bounds(38, 40)[0]
    (belief,) = snapshot.teachers
    assert (belief.compared, belief.agreeing, belief.low, belief.used) == (40, 38, pytest.approx(low), True)
    assert (belief.confirmed, belief.believed, belief.refused) == (38, 20, 2)
    training = datasets.assemble("t", snapshot, None)
    shown = [row for row in rows(datasets, training.demonstrations) if row["source"] == "teacher"]
    assert len(shown) == 20
    assert {round(row["weight"], 6) for row in shown} == {round(2 * low - 1, 6)}
    pairs = [row for row in rows(datasets, training.pairs) if row["tier"] == "teacher"]
    assert len(pairs) == 20
    assert {(row["chosen"], row["rejected"]) for row in pairs} == {("A: 7", "A: 1")}
    assert all(0.5 < row["weight"] < low for row in pairs), "P(chosen right) - P(rejected right)"
    assert training.evidence["answer of a teacher"]["demonstration and chosen side of a pair"] >= 20
    assert training.facts.demonstrations == {"teacher": 20, "verifiable": 38}


def test_a_teacher_that_people_contradict_teaches_nothing_and_counts_as_nobodys_feedback(datasets: LakeDatasets) -> None:
    snapshot = frozen(datasets, wrong=20)
    assert not snapshot.teachers[0].used
    training = datasets.assemble("t", snapshot, None)
    assert not [row for row in rows(datasets, training.demonstrations) if row["source"] == "teacher"]
    assert not [row for row in rows(datasets, training.pairs) if row["chosen"] == "A: 8"], "a refuted answer is trained on nowhere"
    assert snapshot.counts["feedback:teacher"] == 60


def test_what_a_person_says_counts_before_the_teacher(datasets: LakeDatasets) -> None:
    corrected = evaluation("user_correction", text="A: 9", user__id="user-1")
    snapshot = frozen(datasets, corrected)
    samples = [row for row in rows(datasets, snapshot.samples) if row["origin"] == "teacher" and row["tier"] == "teacher"]
    assert samples == [], "each question has a right answer from a person now"
    assert (snapshot.teachers[0].compared, snapshot.teachers[0].agreeing) == (60, 40)


def test_no_answer_of_a_teacher_becomes_a_reference_or_enters_the_holdout(datasets: LakeDatasets) -> None:
    held = questions(True, 3)[1:]
    datasets.ingest(batch(spans(*(span(n, text) for n, text in enumerate(held, 801)))))
    snapshot = frozen(datasets, more=answered((801, "A: 7"), (802, "A: 7")))
    assert datasets.edition(1).size == 1, "the held-out questions with answers of the teacher alone are no prompts of the gate"
    known = {row["reference_kind"] for row in rows(datasets, snapshot.prompts)}
    assert known == {None, "logged"}
    assert not [row for row in rows(datasets, snapshot.samples) if any(text in row["prompt"] for text in held)]


def test_development_prompts_are_neither_sent_nor_measured_with_answers_of_a_teacher(tmp_path: Path) -> None:
    datasets = taught(tmp_path, holdout={"development": 0.4})
    snapshot = frozen(datasets)
    training = datasets.assemble("t", snapshot, None)
    assert training.development is not None
    chosen = {row["prompt_id"]: row for row in rows(datasets, training.development)}
    sendable = datasets.sendable(snapshot)
    assert not chosen.keys() & {one.prompt_id for one in sendable.prompts}
    assert {row["answer"] for row in chosen.values()} == {None}


def test_consent_to_training_alone_sends_nothing_and_held_out_questions_are_not_among_those_sent(tmp_path: Path) -> None:
    datasets = taught(tmp_path)
    assert datasets.sendable(frozen(datasets)).prompts == ()
    more = spans(
        span(700, HELD, user__id="user-9", metadata__consent_third_party=True),
        span(701, MISSING[0], "A: 2", user__id="user-9", metadata__consent_third_party=True),
        span(702, MISSING[1], "A: 2", user__id="user-9", metadata__consent=False, metadata__consent_third_party=True),
    )
    datasets.ingest(batch(more))
    found = datasets.sendable(datasets.freeze("later", LATER, datasets.edition(1)))
    assert [one.messages[-1]["content"] for one in found.prompts] == [MISSING[0]], "and a refusal of training is one of sending"


@pytest.mark.parametrize(
    "refusal",
    [
        spans(span(701, MISSING[0], "A: 2", user__id="user-9", metadata__consent_third_party=False)),
        spans(span(701, MISSING[0], "A: 3", user__id="user-9", metadata__consent_third_party=False)),
        logs(evaluation("user_third_party_consent", 0.0, user__id="user-9") | {"eventName": "gen_ai.evaluation.result"}),
        logs(log(701, evaluation("trace_third_party_consent", 0.0))),
    ],
    ids=["the same record again", "the same id with other content", "a statement about the user", "a statement about the trace"],
)
def test_a_refusal_of_sending_counts_also_where_the_record_itself_is_not_stored(tmp_path: Path, refusal: dict[str, Any]) -> None:
    datasets = taught(tmp_path)
    frozen(datasets)
    datasets.ingest(batch(spans(span(701, MISSING[0], "A: 2", user__id="user-9", metadata__consent_third_party=True))))
    snapshot = datasets.freeze("later", LATER, datasets.edition(1))
    assert [one.messages[-1]["content"] for one in datasets.sendable(snapshot).prompts] == [MISSING[0]]
    for _ in range(2):
        assert datasets.ingest(batch(refusal)).consent_changed == 1
        assert datasets.sendable(snapshot).prompts == ()
        stored = datasets.lake.scan("consent")
        assert (len(stored), stored["given"].to_list()) == (1, [False])
        assert "user-9" not in str(stored.to_dicts())


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_of_two_records_with_one_id_the_refusal_of_sending_counts_in_each_order(tmp_path: Path, order: tuple[bool, bool]) -> None:
    datasets = taught(tmp_path)
    frozen(datasets)
    for agrees in order:
        signup = {"metadata__consent_time": "2026-01-01T00:00:00Z", "metadata__consent_third_party": agrees}
        datasets.ingest(batch(spans(span(701, MISSING[0], "A: 2", user__id="user-9", **signup))))
    assert datasets.sendable(datasets.freeze("later", LATER, datasets.edition(1))).prompts == ()


def test_a_refusal_of_sending_outlives_its_trace(tmp_path: Path) -> None:
    datasets = taught(tmp_path)
    frozen(datasets)
    datasets.ingest(batch(spans(span(701, MISSING[0], "A: 2", user__id="user-9", metadata__consent_third_party=False))))
    datasets.ingest(batch(spans(span(702, MISSING[1], "A: 2", user__id="user-9"))))
    stored = datasets.lake.scan("consent")
    assert stored.select("subject", "given").rows() == [("user_third_party", False)], "retention deletes traces, and no statements"
