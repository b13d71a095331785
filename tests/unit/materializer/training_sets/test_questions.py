"""Tests of what counts as a near-duplicate: known right answers show that prompts of a template are different questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.datasets import NearRule, NearRung, RawBatch, Snapshot
from ratchet.contracts.loop import Loop
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.training_sets.questions import RUNGS, least_similarity
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import T0, batch, evaluation, span, spans
from tests.unit.materializer.training_sets.test_near_duplicates import LATER, sentence, varied

TEMPLATE = "A pump moves {} litres of water in one hour. How many litres does it move in a whole day? Answer with the number alone."
COUNT = 120


def others() -> list[Any]:
    """Calls that resemble no other ones."""
    return [span(900 + n, sentence(n), metadata__reference=f"A: {n}") for n in range(20)]


def templated(answer: str = "A: {}") -> list[Any]:
    """Calls of a template whose right answers differ with the number in the prompt, and others."""
    numbers = [137 + 61 * n for n in range(COUNT)]
    calls = [span(n, TEMPLATE.format(number), metadata__reference=answer.format(24 * number)) for n, number in enumerate(numbers)]
    return [*calls, *others()]


def reworded() -> RawBatch:
    """Calls in pairs: a question, and the same question with a typing mistake. Both have the same right answer."""
    texts = [text for n in range(COUNT // 2) for text in (sentence(n, 40), varied(sentence(n, 40), n))]
    return batch(spans(*(span(n, text, metadata__reference=f"A: {n // 2}") for n, text in enumerate(texts))))


def frozen(folder: Path, records: RawBatch, name: str = "s", loop: Loop | None = None) -> tuple[LakeDatasets, Snapshot, NearRule]:
    """Ingest records and freeze them."""
    datasets = make_datasets(folder, loop)
    datasets.ingest(records)
    snapshot = datasets.freeze(name, LATER, datasets.edition(1))
    assert snapshot.near is not None
    return datasets, snapshot, snapshot.near


def test_prompts_of_a_template_with_different_right_answers_are_different_questions(tmp_path: Path) -> None:
    _, found, rule = frozen(tmp_path / "auto", batch(spans(*templated())))
    assert rule.similarity > RUNGS[0]
    assert sum(rung.different for rung in rule.measured) >= 30
    assert all(rung.different <= rung.pairs for rung in rule.measured)
    loop = make_loop(holdout={"similarity": RUNGS[0]})
    _, fixed, fixed_rule = frozen(tmp_path / "fixed", batch(spans(*templated())), loop=loop)
    assert (fixed_rule.similarity, fixed_rule.measured) == (RUNGS[0], ())
    assert found.largest_cluster is not None
    assert fixed.largest_cluster is not None
    assert found.largest_cluster.prompts < fixed.largest_cluster.prompts / 4
    assert 10 < found.counts["holdout"] < COUNT / 2, "both sides have prompts of the template"


def test_the_golden_set_shows_it_before_the_traffic_does(tmp_path: Path) -> None:
    rows = [{"prompt": TEMPLATE.format(n), "reference": f"A: {24 * n}"} for n in range(90_137, 90_137 + 61 * COUNT, 61)]
    (tmp_path / "golden.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loop = make_loop(holdout={"golden": "golden.jsonl"})
    _, _, rule = frozen(tmp_path, batch(spans(*others())), loop=loop)
    assert rule.similarity > RUNGS[0]


def test_rewordings_with_one_right_answer_stay_near_duplicates(tmp_path: Path) -> None:
    _, _, rule = frozen(tmp_path, reworded())
    assert rule.similarity == RUNGS[0]
    assert sum(rung.pairs for rung in rule.measured) >= 30
    assert sum(rung.different for rung in rule.measured) == 0


def test_the_similarity_never_falls(tmp_path: Path) -> None:
    datasets, _, before = frozen(tmp_path, batch(spans(*templated())))
    datasets.ingest(batch(spans(*(span(950 + n, varied(sentence(3, 40), n), metadata__reference="A: 2") for n in range(60)))))
    after = datasets.freeze("s2", LATER, datasets.edition(1)).near
    assert after is not None
    assert after.similarity == before.similarity > RUNGS[0]


def test_users_cannot_separate_prompts_by_their_corrections(tmp_path: Path) -> None:
    calls = [
        span(n, TEMPLATE.format(137 + 61 * n), events=[evaluation("user_correction", at=T0 + 10, text=f"A: {n}")], user=f"u{n}")
        for n in range(COUNT)
    ]
    _, _, rule = frozen(tmp_path, batch(spans(*calls, *others())))
    assert rule.similarity == RUNGS[0]
    assert sum(rung.pairs for rung in rule.measured) == 0


def test_without_a_scorer_that_compares_answers_nothing_is_shown(tmp_path: Path) -> None:
    loop = make_loop(rewards=[{"name": "user_feedback"}])
    _, _, rule = frozen(tmp_path, batch(spans(*templated())), loop=loop)
    assert (rule.similarity, sum(rung.pairs for rung in rule.measured)) == (RUNGS[0], 0)


def test_right_answers_that_the_scorers_do_not_accept_show_nothing(tmp_path: Path) -> None:
    """`final_number` takes a bare number as a reference, and not as an answer."""
    _, _, rule = frozen(tmp_path, batch(spans(*templated("{}"))))
    assert (rule.similarity, sum(rung.pairs for rung in rule.measured)) == (RUNGS[0], 0)


def test_without_near_duplicates_there_is_no_rule(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(holdout={"near_duplicates": False}))
    datasets.ingest(batch(spans(*templated())))
    assert datasets.freeze("s", LATER, datasets.edition(1)).near is None


@pytest.mark.parametrize(
    ("counts", "least"),
    [
        ([(0, 0), (0, 0), (0, 0)], 0.8),
        ([(29, 29), (0, 0), (0, 0)], 0.8),
        ([(30, 27), (0, 0), (0, 0)], 0.9),
        ([(30, 26), (500, 500), (500, 500)], 0.8),
        ([(10, 0), (40, 40), (29, 29)], 0.95),
        ([(100, 100), (100, 100), (100, 95)], 1.0),
        ([(0, 0), (0, 0), (30, 30)], 1.0),
        ([(100, 100), (100, 10), (100, 100)], 0.9),
    ],
)
def test_the_similarity_rises_over_rungs_of_different_questions(counts: list[tuple[int, int]], least: float) -> None:
    rungs = [
        NearRung(least=low, below=high, pairs=pairs, different=different)
        for low, high, (pairs, different) in zip(RUNGS, RUNGS[1:], counts, strict=False)
    ]
    assert least_similarity(rungs) == least
