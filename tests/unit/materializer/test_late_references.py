"""Tests of right answers that come after their traces: they have the effect of right answers that came with the first records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ratchet.contracts.data.datasets import Snapshot
from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.data.senders import Role, Sender
from ratchet.flows.core.data_notes import count_words, references_note
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.erasure.lake_rows import LineRows, Target
from tests.unit.materializer.conftest import make_datasets, make_loop, pseudonym_of
from tests.unit.materializer.records import T0, batch, evaluation, logs, span, spans
from tests.unit.materializer.small_datasets import HELD, LATER, TRAIN, rows

SECOND = 10**9


def datasets_in(folder: Path) -> LakeDatasets:
    return make_datasets(folder, make_loop(governance={"max_chars": 4000}, snapshot={"references_are_answers": True}))


@pytest.fixture
def datasets(tmp_path: Path) -> LakeDatasets:
    return datasets_in(tmp_path)


def frozen(datasets: LakeDatasets, name: str = "s") -> Snapshot:
    return datasets.freeze(name, LATER, datasets.edition(1))


def prompts(datasets: LakeDatasets, snapshot: Snapshot) -> dict[str, tuple[str | None, str | None]]:
    """Question -> its right answer and the kind of it."""
    found = rows(datasets, snapshot.prompts)
    return {text: (row["reference"], row["reference_kind"]) for text in TRAIN for row in found if f'"{text}"' in row["prompt"]}


def of_references(snapshot: Snapshot) -> dict[str, int]:
    return {name.removeprefix("reference:"): n for name, n in snapshot.counts.items() if name.startswith("reference:")}


@pytest.mark.slow
def test_late_right_answers_have_the_effect_of_early_ones(tmp_path: Path) -> None:
    """Of a held-out question, one serves the gate and not the training, and no prompt changes its id or its side."""
    early, late = datasets_in(tmp_path / "early"), datasets_in(tmp_path / "late")
    asked: list[tuple[int, str, dict[str, Any]]] = [
        (1, HELD, {"metadata__reference": "1"}),
        (2, TRAIN[0], {"metadata__reference": "7"}),
        (3, TRAIN[1], {"metadata__reference": "see x@example-mail.com"}),
        (4, TRAIN[2], {}),
    ]
    whole = batch(spans(*(span(n, text, **more) for n, text, more in asked)))
    early.ingest(whole)
    late.ingest(batch(spans(*(span(n, text) for n, text, _ in asked))))
    assert late.ingest(whole).late_references == 3
    one, other = frozen(early), frozen(late)
    assert (one.content, early.edition(1).prompts) == (other.content, late.edition(1).prompts)
    assert of_references(one) == of_references(other) == {"holdout": 1, "masked_answer": 1, "used": 1}
    assert other.counts == one.counts | {"late_references": 3}
    assert [early.assemble("t", one, None).demonstrations] == [late.assemble("t", other, None).demonstrations]
    assert prompts(late, other)[TRAIN[0]] == ("7", "logged")
    assert not any(HELD in row["prompt"] for row in rows(late, other.prompts)), "a held-out question is not trained on"


@pytest.mark.slow
def test_the_newest_right_answer_of_a_trace_counts_and_the_counts_add_up(datasets: LakeDatasets) -> None:
    datasets.ingest(batch(spans(span(9, HELD, metadata__reference="1"), span(1, TRAIN[0], metadata__reference="6"), span(2, TRAIN[1]))))
    datasets.ingest(batch(spans(span(1, TRAIN[0], metadata__reference="8"), span(2, TRAIN[1], metadata__reference="5"))))
    datasets.ingest(batch(spans(span(1, TRAIN[0], metadata__reference="7"))))
    snapshot = frozen(datasets)
    assert prompts(datasets, snapshot)[TRAIN[0]] == ("7", "logged")
    assert of_references(snapshot) == {"holdout": 1, "newer_one_counts": 2, "used": 2}
    assert snapshot.counts["late_references"] == 3
    assert "feedback:used" not in snapshot.counts
    note = references_note(snapshot.counts) or ""
    assert note.startswith("Of 5 right answers that the application logged, 2 are used")
    assert count_words("late_references") == "logged right answers that came with a later record of their trace"


@pytest.mark.slow
def test_a_reviewer_still_knows_better(datasets: LakeDatasets) -> None:
    reviewed = evaluation("reviewer_reference", text="9")
    datasets.ingest(batch(spans(span(9, HELD, metadata__reference="1"), span(1, TRAIN[0], events=[reviewed]))))
    datasets.ingest(batch(spans(span(1, TRAIN[0], metadata__reference="7"))))
    snapshot = frozen(datasets)
    assert prompts(datasets, snapshot)[TRAIN[0]] == ("9", "reference")
    assert of_references(snapshot) == {"holdout": 1, "reviewer_knows_better": 1}


def test_what_comes_after_a_freeze_is_not_in_it(datasets: LakeDatasets) -> None:
    datasets.ingest(batch(spans(span(1, TRAIN[0]), span(9, HELD, metadata__reference="1"))))
    as_of = datasets.clock.now()
    datasets.ingest(batch(spans(span(1, TRAIN[0], metadata__reference="7"))))
    edition = datasets.edition(1)
    assert of_references(datasets.freeze("before", as_of, edition)) == {"holdout": 1}
    assert prompts(datasets, datasets.freeze("after", LATER, edition))[TRAIN[0]] == ("7", "logged")


def test_a_person_takes_the_late_right_answer_along(datasets: LakeDatasets) -> None:
    """An erasure removes the row, and a refusal keeps it from being used."""
    datasets.ingest(batch(spans(*(span(n, text) for n, text in enumerate(TRAIN[:2], 1)), span(9, HELD, metadata__reference="1"))))
    datasets.ingest(batch(spans(*(span(n, text, metadata__reference=f"a{n}") for n, text in enumerate(TRAIN[:2], 1)))))
    with datasets.lake.writing():
        user = pseudonym_of(datasets, "u", "user-1")
        LineRows(datasets.lake, Target(users=frozenset({user}))).remove(datasets._seen)
    assert datasets.lake.scan("feedback").filter(pl.col("kind") == FeedbackKind.LOGGED.value)["text"].to_list() == ["a2"]
    said = evaluation("user_consent", 0.0, at=T0 + 60 * SECOND, user__id="user-2") | {"eventName": "gen_ai.evaluation.result"}
    datasets.ingest(replace(batch(logs(said)), sender=Sender(name="desk", roles=(Role.FEEDBACK,))))
    snapshot = frozen(datasets)
    assert prompts(datasets, snapshot) == {}
    assert of_references(snapshot) == {"consent": 1, "holdout": 1}


@pytest.mark.parametrize(("roles", "counts"), [((Role.TRACES,), False), ((Role.OPERATOR,), True)])
def test_another_sender_gives_no_right_answer_to_a_trace(tmp_path: Path, roles: tuple[Role, ...], counts: bool) -> None:
    """Whoever may send traces could otherwise decide what other people's questions are trained and judged by."""
    datasets = make_datasets(tmp_path, make_loop(rewards=[{"name": "exact_match"}]))
    asked = span(1, TRAIN[0], "no", metadata__reference="own")
    again = span(1, TRAIN[0], "no", metadata__reference="foreign")
    datasets.ingest(replace(batch(spans(asked)), sender=Sender(name="app", roles=(Role.TRACES,))))
    datasets.ingest(replace(batch(spans(again)), sender=Sender(name="other", roles=roles)))
    settled = datasets._settled.read(None, "x")
    part = pl.concat(list(settled.traces))
    assert part["reference"].to_list() == ["foreign" if counts else "own"]
    assert settled.replaced_references == ({"newer_one_counts": 1} if counts else {"other_sender": 1})
