"""Tests of the development prompts: never trained on, with all their near-duplicates, for the life of a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import CROSS_VALIDATED_BELOW, TrainingSet
from ratchet.contracts.data.records import DEMONSTRATIONS, PROMPTS
from ratchet.contracts.errors import ConfigError
from ratchet.contracts.ids import hash_share, root_id
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.lake.schemas import frame_of
from ratchet.materializer.training_sets.development import (
    MOST,
    Part,
    clusters_to_measure,
    cross_validation_rows,
    development_rows,
    is_development,
    part_of,
)
from ratchet.materializer.training_sets.prompt_sides import PromptSides
from tests.unit.materializer import conftest
from tests.unit.materializer.conftest import make_loop
from tests.unit.materializer.records import batch, span, spans
from tests.unit.materializer.small_datasets import HELD, LATER, rows
from tests.unit.materializer.training_sets.test_near_duplicates import sentence, varied

COUNT = 120


def make_datasets(folder: Path, share: float = 0.15) -> LakeDatasets:
    return conftest.make_datasets(folder, make_loop(holdout={"development": share}))


def asked(texts: list[str], first: int = 1) -> Any:
    """Spans with right answers to the questions, and one held-out question."""
    items = (span(first + n, text, answer="A: 2", metadata__reference="2") for n, text in enumerate(texts))
    return batch(spans(span(9000 + first, HELD, metadata__reference="1"), *items))


def assembled(datasets: LakeDatasets, name: str) -> TrainingSet:
    return datasets.assemble(f"t/{name}", datasets.freeze(name, LATER, datasets.edition(1)), None)


def texts_of(datasets: LakeDatasets, key: str | None) -> set[str]:
    return {json.loads(row["prompt"])[0]["content"] for row in rows(datasets, key)} if key else set()


def trained_on(datasets: LakeDatasets, training: TrainingSet) -> set[str]:
    return set().union(*(texts_of(datasets, key) for key in (training.pairs, training.prompts, training.demonstrations)))


@pytest.mark.slow
def test_a_share_of_the_prompts_is_never_trained_on(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(asked([sentence(n) for n in range(COUNT)]))
    snapshot = datasets.freeze("s", LATER, datasets.edition(1))
    training = datasets.assemble("t", snapshot, None)
    development = texts_of(datasets, training.development)
    assert training.development_prompts == len(development) > 5
    trained = trained_on(datasets, training)
    assert trained
    assert not development & trained
    assert development | trained == texts_of(datasets, snapshot.prompts)
    assert {row["answer"] for row in rows(datasets, str(training.development))} == {"A: 2"}
    assert {row["reference"] for row in rows(datasets, str(training.development))} == {"2"}


@pytest.mark.slow
def test_with_few_development_prompts_the_trained_prompts_are_stored_with_their_clusters(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    texts = [sentence(n) for n in range(40)]
    datasets.ingest(asked([*texts, *(varied(text, n) for n, text in enumerate(texts[:20]))]))
    training = assembled(datasets, "s")
    assert training.development_prompts < CROSS_VALIDATED_BELOW
    found = rows(datasets, str(training.cross_validation))
    assert texts_of(datasets, training.cross_validation) == trained_on(datasets, training), (
        "all of these and no other prompts are trained on"
    )
    assert {(row["reference"], row["answer"]) for row in found} == {("2", "A: 2")}
    clusters = {json.loads(row["prompt"])[0]["content"]: row["cluster"] for row in found}
    alike = [(text, varied(text, n)) for n, text in enumerate(texts[:20]) if text in clusters]
    assert alike
    assert all(clusters[text] == clusters[other] for text, other in alike)
    assert training.cross_validated_prompts == len(set(clusters.values())) < len(clusters)


@pytest.mark.slow
def test_of_many_clusters_a_part_is_stored_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.materializer.training_sets.development.CROSS_VALIDATED_CLUSTERS", 9)
    datasets = make_datasets(tmp_path, 0)
    texts = [sentence(n) for n in range(40)]
    datasets.ingest(asked([*texts, *(varied(text, n) for n, text in enumerate(texts))]))
    training = assembled(datasets, "s")
    stored, trained = texts_of(datasets, training.cross_validation), trained_on(datasets, training)
    assert training.cross_validated_prompts == 9
    assert stored < trained
    for n, text in enumerate(texts):
        if {text, varied(text, n)} <= trained:
            assert (text in stored) == (varied(text, n) in stored), "near-duplicates of a measured prompt must be known, to hold them out"


@pytest.mark.slow
def test_the_sides_name_the_development_prompts_and_the_clusters_of_all(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    texts = [sentence(n) for n in range(40)]
    datasets.ingest(asked([*texts, *(varied(text, n) for n, text in enumerate(texts))]))
    snapshot = datasets.freeze("s", LATER, datasets.edition(1))
    sides = datasets.sides(snapshot)
    prompts = {row["prompt_id"]: json.loads(row["prompt"])[0]["content"] for row in rows(datasets, snapshot.prompts)}
    training = datasets.assemble("t", snapshot, None)
    assert {prompts[key] for key in sides.development} == texts_of(datasets, training.development)
    assert sides.clusters.keys() == prompts.keys()
    by_text = {text: sides.clusters[key] for key, text in prompts.items()}
    alike = [(text, varied(text, n)) for n, text in enumerate(texts) if text in by_text and varied(text, n) in by_text]
    assert alike
    assert all(by_text[text] == by_text[other] for text, other in alike)
    assert len(set(by_text.values())) > 1


@pytest.mark.slow
def test_with_enough_development_prompts_none_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.materializer.training_sets.assembly.CROSS_VALIDATED_BELOW", 3)
    datasets = make_datasets(tmp_path)
    datasets.ingest(asked([sentence(n) for n in range(COUNT)]))
    training = assembled(datasets, "s")
    assert training.development_prompts >= 3
    assert (training.cross_validation, training.cross_validated_prompts) == (None, 0)


@pytest.mark.slow
def test_near_duplicates_are_in_the_same_part_in_all_cycles(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    texts = [sentence(n) for n in range(COUNT)]
    datasets.ingest(asked(texts))
    first = assembled(datasets, "one")
    before, trained = texts_of(datasets, first.development), trained_on(datasets, first)
    datasets.ingest(asked([varied(text, n) for n, text in enumerate(texts)], 2000))
    second = assembled(datasets, "two")
    after, trained_after = texts_of(datasets, second.development), trained_on(datasets, second)
    assert before <= after
    assert not after & (trained | trained_after)
    of_text = {varied(text, n): text for n, text in enumerate(texts)}
    for text in after - before:
        assert of_text[text] in before, "a near-duplicate of a trained prompt must not measure"
    for text in trained_after - trained:
        assert of_text[text] not in before, "a near-duplicate of a development prompt must not be trained on"
    assert after - before
    assert trained_after - trained


def test_a_prompt_that_joins_two_clusters_makes_the_development_cluster_unused() -> None:
    assert part_of("a", ("a",), {"a"}.__contains__) is Part.DEVELOPMENT
    assert part_of("a", ("a", "b"), {"a"}.__contains__) is Part.NEITHER
    assert part_of("b", ("a", "b"), {"a"}.__contains__) is Part.TRAIN
    assert part_of("a", ("a", "b"), {"a", "b"}.__contains__) is Part.DEVELOPMENT


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12), st.sets(st.integers(0, 9)))
def test_a_trained_prompt_never_becomes_a_development_prompt(joins: list[tuple[int, int]], chosen: set[int]) -> None:
    """Joins are only added. After each, the parts may change from development to neither, and in no other way."""
    members = {n: {n} for n in range(10)}
    before = {n: part_of(str(n), {str(n)}, lambda c: int(c) in chosen) for n in range(10)}
    for one, other in joins:
        both = members[one] | members[other]
        for n in both:
            members[n] = both
        after = {n: part_of(str(n), {str(m) for m in members[n]}, lambda c: int(c) in chosen) for n in range(10)}
        for n in range(10):
            assert after[n] is before[n] or (before[n], after[n]) == (Part.DEVELOPMENT, Part.NEITHER)
        before = after


@pytest.mark.slow
def test_a_higher_share_is_refused_once_the_line_was_split(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(asked([sentence(1)]))
    assembled(datasets, "one")
    other = make_datasets(tmp_path, 0.3)
    with pytest.raises(ConfigError, match=r"holdout.development = 0.15.*set this value or a lower one"):
        other.freeze("two", LATER, other.edition(1))


@pytest.mark.slow
def test_a_lower_share_makes_development_prompts_training_prompts_for_good(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(asked([sentence(n) for n in range(120)]))
    first = assembled(datasets, "one")
    kept, trained = texts_of(datasets, first.development), trained_on(datasets, first)
    lower = make_datasets(tmp_path, 0.05)
    second = assembled(lower, "two")
    assert texts_of(lower, second.development) < kept
    assert trained_on(lower, second) == trained | (kept - texts_of(lower, second.development))
    none = make_datasets(tmp_path, 0)
    third = assembled(none, "three")
    assert third.development is None
    assert trained_on(none, third) == trained | kept
    with pytest.raises(ConfigError, match=r"holdout.development = 0,.*set this value or a lower one"):
        assembled(make_datasets(tmp_path), "four")


@pytest.mark.slow
def test_a_preview_does_not_lower_the_share(tmp_path: Path) -> None:
    """A preview freezes data with edition 0 (flows/engine/choice/preview.py)."""
    datasets = make_datasets(tmp_path)
    datasets.ingest(asked([sentence(n) for n in range(60)]))
    assembled(datasets, "one")
    lower = make_datasets(tmp_path, 0)
    snapshot = lower.freeze("preview/two", LATER, lower.edition(0))
    assert lower.assemble("preview/two/plan", snapshot, None).development is None, "it shows what the lower share would give"
    assert assembled(make_datasets(tmp_path), "three").development is not None, "the share is still the first one"


def test_clusters_whose_answers_can_be_scored_are_measured_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.materializer.training_sets.development.CROSS_VALIDATED_CLUSTERS", 50)
    asked_for = {"prompt": "[]", "reference": "r", "reference_kind": "logged", "slice": None, "tools": None}
    prompts = [asked_for | {"prompt_id": f"p{n}"} for n in range(400)]
    answer = {"prompt": "[]", "answer": "a", "source": "verifiable", "weight": 0.9, "slice": None, "tools": None}
    shown = frame_of([answer | {"prompt_id": f"p{n}"} for n in range(400)], DEMONSTRATIONS)
    found = cross_validation_rows(frame_of(prompts, PROMPTS), [f"p{n}" for n in range(0, 400, 10)], shown, {})
    assert (len(found), clusters_to_measure(found)) == (50, 40)
    few = cross_validation_rows(frame_of(prompts, PROMPTS), ["p1"], shown, {})
    assert clusters_to_measure(few) == 50, "with few references, the likelihood of the known answers is measured"


def test_rows_are_limited_and_have_an_answer_or_a_reference() -> None:
    prompts = [
        {"prompt_id": f"p{n}", "prompt": "[]", "reference": "r", "reference_kind": "logged", "slice": None, "tools": None}
        for n in range(MOST + 50)
    ]
    shown = frame_of(
        [
            {"prompt_id": "p1", "prompt": "[]", "answer": text, "source": "verifiable", "weight": weight, "slice": None, "tools": None}
            for text, weight in (("weak", 0.2), ("strong", 0.9))
        ],
        DEMONSTRATIONS,
    )
    found = development_rows(frame_of(prompts, PROMPTS), [f"p{n}" for n in range(MOST + 50)], shown, "salt")
    assert len(found) == MOST
    assert found.filter(pl.col("prompt_id") == "p1")["answer"].to_list() in ([], ["strong"])
    only = development_rows(frame_of(prompts, PROMPTS), ["p0"], shown, "salt").sort("prompt_id")
    assert only.select("prompt_id", "reference", "answer").rows() == [("p0", "r", None), ("p1", None, "strong")]


def test_the_sides_tell_clusters_without_changing_anything(tmp_path: Path) -> None:
    sides = PromptSides(tmp_path)
    assert sides.clusters() == {}
    texts = {root_id([{"role": "user", "content": text}]): text for text in (sentence(1), varied(sentence(1), 3), sentence(2))}
    placed = sides.assign(texts, lambda _root: False)
    assert {root: joined[0] for root, joined in sides.clusters().items()} == {root: place.cluster for root, place in placed.items()}


def test_the_share_is_by_hash() -> None:
    chosen = is_development("salt", 0.15)
    found = [name for name in (f"c{n}" for n in range(2000)) if chosen(name)]
    assert 0.12 < len(found) / 2000 < 0.18
    assert all(hash_share("development", "salt", name) < 0.15 for name in found)
