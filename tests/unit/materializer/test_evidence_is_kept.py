"""Tests that no evidence about a question is lost with the trace that carries it: as an equal trace, for its answer, or by the order."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratchet.contracts.data.records import TRACES
from ratchet.contracts.evaluation import ChatAnswer
from ratchet.contracts.ids import root_id
from ratchet.contracts.loop import GovernanceSettings, PrivacySettings
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.governance import govern, with_facts
from ratchet.materializer.privacy.masked_values import placeholder_pattern
from ratchet.materializer.training_sets.holdout import held_out
from tests.unit.materializer.conftest import NOW, make_datasets, make_loop
from tests.unit.materializer.faults import BETWEEN, FAULTS, GOLDEN_TEXT, LEFT, RIGHT, faulty
from tests.unit.materializer.records import T0, evaluation, span
from tests.unit.materializer.small_datasets import HELD, TRAIN, frozen, rows

SECOND = 1_000_000_000


@pytest.fixture
def datasets(tmp_path: Path) -> LakeDatasets:
    return make_datasets(tmp_path, make_loop(governance={"max_chars": 4000}, snapshot={"references_are_answers": True}))


def known(datasets: LakeDatasets, *items: Any) -> dict[str, tuple[str | None, str | None]]:
    """Return question -> (reference, slice) of the training prompts of a snapshot of the spans."""
    found = rows(datasets, frozen(datasets, *items).prompts)
    texts = {question: row for row in found for question in TRAIN if f'"{question}"' in row["prompt"]}
    return {question: (row["reference"], row["slice"]) for question, row in texts.items()}


@pytest.mark.parametrize("first", [0, 1])
def test_a_reference_and_a_slice_of_an_equal_trace_are_kept_in_any_order(datasets: LakeDatasets, first: int) -> None:
    plain = span(1, TRAIN[0], "A: 3", at=T0 + first * SECOND)
    rich = span(2, TRAIN[0], "A: 3", at=T0 + (1 - first) * SECOND, metadata__reference="7", metadata__slice="sums")
    assert known(datasets, plain, rich)[TRAIN[0]] == ("7", "sums")


@pytest.mark.slow
@pytest.mark.parametrize("reason", FAULTS)
def test_a_right_answer_to_a_question_whose_answer_is_left_out_is_kept(datasets: LakeDatasets, reason: str) -> None:
    wrote = evaluation("user_correction", text="A: 5", user__id="user-2")
    reviewed = evaluation("reviewer_reference", text="6")
    snapshot = frozen(
        datasets,
        faulty(1, TRAIN[0], reason, metadata__reference="4"),
        faulty(2, TRAIN[1], reason, (wrote,)),
        faulty(3, TRAIN[2], reason, (reviewed,)),
        faulty(4, TRAIN[3], reason),
    )
    found = {row["prompt"]: row["reference"] for row in rows(datasets, snapshot.prompts)}
    assert sorted(found.values()) == ["4", "6", "A: 5"]
    assert not any(TRAIN[3] in prompt for prompt in found), "nobody has said anything about this question"
    samples = rows(datasets, snapshot.samples)
    assert [(row["answer"], row["origin"]) for row in samples] == [("A: 5", "correction")], "the answers themselves are left out"
    assert snapshot.counts[f"out:{reason}"] == 4
    assert snapshot.counts["questions"] == 3
    training = datasets.assemble("t", snapshot, None)
    assert sorted(row["answer"] for row in rows(datasets, training.demonstrations)) == ["4", "6", "A: 5"]


@pytest.mark.slow
def test_no_text_with_a_masked_value_that_its_question_does_not_have_is_a_right_answer(datasets: LakeDatasets) -> None:
    """A model that is trained on such a text writes the placeholder."""

    def trained(form: str, *places: str) -> list[str]:
        """Return questions with addresses that are not held out, as their masked form decides it."""
        masked = (form.format(n, *(f"[EMAIL_{k}]" for k, _ in enumerate(places, 1))) for n in range(100))
        kept = [n for n, text in enumerate(masked) if not held_out(root_id([{"role": "user", "content": text}]), "ratchet", 0.2)]
        return [form.format(n, *places) for n in kept]

    named = trained("question {} for {}?", "a@example-mail.com")
    both = trained("question {} for {} and {}?", "d@example-mail.com", "e@example-mail.com")[0]
    snapshot = frozen(
        datasets,
        span(1, named[0], "to a@example-mail.com", metadata__reference="sent to a@example-mail.com"),
        span(2, named[1], "no", (evaluation("user_correction", text="ask a@example-mail.com", user__id="user-2"),)),
        span(3, named[2], "no", (evaluation("reviewer_reference", text="call +49 171 1234567"),)),
        span(4, both, "no", (evaluation("reviewer_reference", text="ask e@example-mail.com"),)),
        span(5, TRAIN[4], "no", metadata__reference="see f@example-mail.com"),
    )
    prompts = {row["prompt"]: row["reference"] for row in rows(datasets, snapshot.prompts)}
    assert sorted(filter(None, prompts.values())) == ["ask [EMAIL_1]", "sent to [EMAIL_1]"]
    assert len(prompts) == 5, "the questions stay"
    counts = snapshot.counts
    assert (counts["reference:masked_answer"], counts["feedback:masked_answer"]) == (1, 2), "the numbers of a correction begin anew"
    assert "out:masked_answer" not in counts
    demonstrated = rows(datasets, datasets.assemble("t", snapshot, None).demonstrations)
    assert {row["answer"] for row in demonstrated} == {"ask [EMAIL_1]", "sent to [EMAIL_1]"}


def test_a_kind_of_the_line_itself_counts_and_other_brackets_do_not(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(privacy={"patterns": {"customer": r"K-\d{5}"}}))
    items = [span(1, TRAIN[0], "you are K-12345"), span(2, TRAIN[1], "see [DOC_1]"), span(3, "who is K-12345?", "K-12345 is you")]
    counts = frozen(datasets, *items).counts
    assert (counts["out:masked_answer"], counts["considered"]) == (1, 4)


def test_a_masked_value_in_the_definition_of_a_tool_is_known(datasets: LakeDatasets) -> None:
    described = {"name": "mail", "description": "sends to help@example-mail.com", "parameters": {"type": "object", "properties": {}}}
    tools = json.dumps([{"type": "function", "function": described}])
    items = [span(n, text, "write to help@example-mail.com", gen_ai__tool__definitions=tools) for n, text in enumerate(TRAIN[:3], 1)]
    assert "out:masked_answer" not in frozen(datasets, *items).counts


class Writing:
    """A model that has learnt to write placeholders."""

    def chat(self, requests: Sequence[Any], progress: Any) -> list[ChatAnswer]:
        return [ChatAnswer(text="A: [EMAIL_1]" if i % 2 else "no") for i, _ in enumerate(requests)]


@pytest.mark.slow
def test_a_probed_answer_with_a_placeholder_is_not_right_by_its_form(tmp_path: Path) -> None:
    by_form = make_loop(rewards=[{"name": "regex", "options": {"pattern": "^A: "}}], probe={"prompts": 5, "samples": 4})
    datasets = make_datasets(tmp_path, by_form)
    snapshot = frozen(datasets, *(span(n, text, "nothing") for n, text in enumerate(TRAIN[:4], 1)))
    training = datasets.assemble("t", snapshot, datasets.probe("p", snapshot, Writing(), lambda *_: None))
    assert not rows(datasets, training.demonstrations)
    assert not rows(datasets, training.pairs)


def test_a_rating_of_an_answer_that_is_left_out_is_no_evidence(datasets: LakeDatasets) -> None:
    liked = evaluation("user_feedback", 1.0, user__id="user-1")
    snapshot = frozen(datasets, faulty(1, TRAIN[0], "truncated", (liked,)), span(2, TRAIN[1], "A: 1", metadata__reference="1"))
    assert [row["prompt"] for row in rows(datasets, snapshot.prompts)] == [rows(datasets, snapshot.samples)[0]["prompt"]]


def test_a_verified_trace_represents_its_equals() -> None:
    """The attribution to a version says which answers the champion gave itself, so it must not depend on which equal trace came first."""
    common = {"origin": "traffic", "messages": "[]", "answer": "A: 3", "status": "ok", "consent": True, "refused": False, "latency_ms": 1.0}
    times = [NOW, NOW + timedelta(seconds=1)]
    traces = pl.DataFrame(
        [
            common | {"source": "a", "id": "1", "time": times[0], "model_version": None, "verified": False},
            common | {"source": "a", "id": "2", "time": times[1], "model_version": "v-1", "verified": True, "latency_ms": 3.0},
        ]
    )
    missing = {column.name: pl.lit(None, pl.String) for column in TRACES if column.name not in traces.columns}
    governed = govern(with_facts(traces.with_columns(**missing), placeholder_pattern(PrivacySettings())), GovernanceSettings())
    (kept,) = governed.used.iter_rows(named=True)
    assert (kept["id"], kept["model_version"], kept["repeats"], kept["latency_ms"]) == ("2", "v-1", 2, 2.0)


RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2), st.sampled_from(["A: 1", "A: 2"]), st.booleans(), st.sampled_from([None, "1", "2"]), st.sampled_from([None, "a"])
    ),
    min_size=1,
    max_size=5,
)
"""Records of three questions: question, answer, whether it is cut, logged right answer, slice."""


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(sent=RECORDS)
def test_no_evidence_is_lost_by_the_order_of_records(tmp_path_factory: pytest.TempPathFactory, sent: Any) -> None:
    """A question has a right answer if any of its records has one, and a slice if any of them has one, in whatever order they were sent."""
    items, references, slices, whole = [], set[str](), set[str](), set[str]()
    for n, (number, answer, cut, reference, label) in enumerate(sent, 1):
        more = {"at": T0 + n * SECOND, "metadata__reference": reference, "metadata__slice": label}
        question = TRAIN[number]
        items.append(faulty(n, question, "truncated", **more) if cut else span(n, question, answer, **more))
        references |= {question} if reference else set()
        slices |= {question} if label and not cut else set()
        whole |= set() if cut else {question}
    found = known(make_datasets(tmp_path_factory.mktemp("order"), make_loop()), *items)
    assert set(found) == whole | references
    assert {question for question, (reference, _) in found.items() if reference} == references
    assert {question for question, (_, label) in found.items() if label} >= slices


@pytest.mark.slow
def test_the_counts_say_what_became_of_each_logged_right_answer(datasets: LakeDatasets) -> None:
    reviewed = evaluation("reviewer_reference", text="6", at=T0 + 9 * SECOND)
    snapshot = frozen(
        datasets,
        span(1, TRAIN[0], "A: 3", metadata__reference="7"),
        span(2, TRAIN[0], "A: 3", at=T0 + SECOND, metadata__reference="7"),
        span(3, TRAIN[1], "A: 3", metadata__reference="1"),
        span(4, TRAIN[1], "A: 4", at=T0 + SECOND, metadata__reference="2"),
        span(5, TRAIN[2], "A: 3", (reviewed,), metadata__reference="5"),
        span(6, TRAIN[3], "A: 3", metadata__consent=False, metadata__reference="5"),
        span(8, "x" * 5000, "A: 3", metadata__reference="5"),
        faulty(7, TRAIN[4], "truncated", metadata__reference="5"),
    )
    became = {key.removeprefix("reference:"): n for key, n in snapshot.counts.items() if key.startswith("reference:")}
    assert became == {"holdout": 1, "newer_one_counts": 1, "reviewer_knows_better": 1, "too_long": 1, "used": 4}
    assert sum(became.values()) == datasets.lake.scan("traces")["reference"].count()


QUESTIONS = {
    "plain": TRAIN[0],
    "other": TRAIN[1],
    "held": HELD,
    "left": LEFT,
    "right": RIGHT,
    "between": BETWEEN,
    "golden": GOLDEN_TEXT,
    "near golden": GOLDEN_TEXT.replace("parcel3", "changed"),
}


def covering(folder: Path) -> LakeDatasets:
    """Return datasets with a golden set, near-duplicates, development prompts and the tightest caps."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "golden.jsonl").write_text(json.dumps({"question": GOLDEN_TEXT, "reference": "5"}) + "\n")
    caps = {"pairs_per_prompt": 1, "pairs_per_person": 1, "references_are_answers": True}
    return make_datasets(folder, make_loop(holdout={"golden": "golden.jsonl", "development": 0.3}, snapshot=caps))


KEPT = st.lists(
    st.tuples(st.sampled_from(sorted(QUESTIONS)), st.sampled_from(["A: 1", "A: 2"]), st.sampled_from([None, *FAULTS]),
              st.sampled_from([None, "1", "2"]), st.sampled_from([None, 0.0, 1.0]), st.booleans(), st.integers(1, 2)),
    min_size=1,
    max_size=8,
)  # fmt: skip
"""Records: question, answer, fault of the answer, logged right answer, rating, whether a user corrected it, user."""


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(sent=KEPT, order=st.randoms(use_true_random=False))
@example(
    sent=[(name, "A: 2", None, "1", 0.0, True, n % 2) for n, name in enumerate([*QUESTIONS, "plain", "other"])], order=random.Random(1)
)
def test_the_order_of_arrival_changes_nothing_and_all_evidence_is_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, sent: Any, order: Any
) -> None:
    """Near-duplicates, golden prompts, development prompts and the caps included, and no record of evidence is without a destination."""
    items, records = [], 0
    for n, (question, answer, fault, reference, rating, corrected, user) in enumerate(sent, 1):
        events = [evaluation("user_feedback", rating, user__id=f"user-{user}")] if rating is not None else []
        events += [evaluation("user_correction", text="A: 5", user__id=f"user-{user}")] if corrected else []
        more = {"at": T0 + n * SECOND, "metadata__reference": reference, "user__id": f"user-{user}"}
        text = QUESTIONS[question]
        items.append(faulty(n, text, fault, tuple(events), **more) if fault else span(n, text, answer, tuple(events), **more))
        records += len(events)
    made = []
    for _ in range(2):
        datasets = covering(tmp_path_factory.mktemp("order"))
        snapshot = frozen(datasets, *items)
        made.append((snapshot, datasets.assemble("t", snapshot, None)))
        order.shuffle(items)
    (first, training), (second, other) = made
    assert (second.samples, second.prompts, second.counts) == (first.samples, first.prompts, first.counts)
    assert (other.content, other.evidence, other.facts) == (training.content, training.evidence, training.facts)

    def told(kind: str) -> int:
        return sum(n for name, n in first.counts.items() if name.startswith(f"{kind}:"))

    assert told("reference") == 1 + sum(reference is not None for *_, reference, _, _, _ in sent), "and the one of `frozen` in the holdout"
    assert told("feedback") == records
    assert first.counts["considered"] == told("out") + first.counts["holdout"] + first.counts["used"] == len(sent) + 1
    answers = rows(datasets, first.samples)
    given_kinds = [row for row in rows(datasets, first.prompts) if row["reference_kind"] in ("reference", "logged")]
    assert sum(n for found in training.evidence.values() for n in found.values()) == len(answers) + len(given_kinds)
