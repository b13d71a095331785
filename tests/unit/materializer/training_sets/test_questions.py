"""Tests of what counts as a near-duplicate: known right answers show that prompts of a template are different questions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.datasets import NearRule, NearRung, RawBatch, Snapshot
from ratchet.contracts.ids import normalise
from ratchet.contracts.loop import Loop, RewardSettings
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.training_sets.questions import RUNGS, Compare, Question, compared, least_similarity
from ratchet.rewards.scorer_set import build_scorer_set
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import T0, attribute, batch, evaluation, raw, span, spans
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
    datasets = make_datasets(folder, loop or make_loop(holdout={"similarity": "auto"}))
    datasets.ingest(records)
    snapshot = datasets.freeze(name, LATER, datasets.edition(1))
    assert snapshot.near is not None
    return datasets, snapshot, snapshot.near


@pytest.mark.slow
def test_prompts_of_a_template_with_different_right_answers_are_different_questions(tmp_path: Path) -> None:
    _, found, rule = frozen(tmp_path / "auto", batch(spans(*templated())))
    assert rule.similarity > RUNGS[0]
    assert sum(rung.different for rung in rule.measured) >= 30
    assert all(rung.different <= rung.pairs for rung in rule.measured)
    loop = make_loop(holdout={})
    _, fixed, fixed_rule = frozen(tmp_path / "fixed", batch(spans(*templated())), loop=loop)
    assert (fixed_rule.similarity, fixed_rule.measured) == (RUNGS[0], ())
    assert found.largest_cluster is not None
    assert fixed.largest_cluster is not None
    assert found.largest_cluster.prompts < fixed.largest_cluster.prompts / 4
    assert 10 < found.counts["holdout"] < COUNT / 2, "both sides have prompts of the template"


@pytest.mark.slow
def test_the_golden_set_shows_it_before_the_traffic_does(tmp_path: Path) -> None:
    rows = [{"prompt": TEMPLATE.format(n), "reference": f"A: {24 * n}"} for n in range(90_137, 90_137 + 61 * COUNT, 61)]
    (tmp_path / "golden.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loop = make_loop(holdout={"similarity": "auto", "golden": "golden.jsonl"})
    _, _, rule = frozen(tmp_path, batch(spans(*others())), loop=loop)
    assert rule.similarity > RUNGS[0]


@pytest.mark.slow
def test_rewordings_with_one_right_answer_stay_near_duplicates(tmp_path: Path) -> None:
    _, _, rule = frozen(tmp_path, reworded())
    assert rule.similarity == RUNGS[0]
    assert sum(rung.pairs for rung in rule.measured) >= 30
    assert sum(rung.different for rung in rule.measured) == 0


@pytest.mark.slow
def test_the_similarity_never_falls(tmp_path: Path) -> None:
    datasets, _, before = frozen(tmp_path, batch(spans(*templated())))
    datasets.ingest(batch(spans(*(span(950 + n, varied(sentence(3, 40), n), metadata__reference="A: 2") for n in range(60)))))
    after = datasets.freeze("s2", LATER, datasets.edition(1)).near
    assert after is not None
    assert after.similarity == before.similarity > RUNGS[0]


@pytest.mark.slow
def test_users_cannot_separate_prompts_by_their_corrections(tmp_path: Path) -> None:
    calls = [
        span(n, TEMPLATE.format(137 + 61 * n), events=[evaluation("user_correction", at=T0 + 10, text=f"A: {n}")], user=f"u{n}")
        for n in range(COUNT)
    ]
    _, _, rule = frozen(tmp_path, batch(spans(*calls, *others())))
    assert rule.similarity == RUNGS[0]
    assert sum(rung.pairs for rung in rule.measured) == 0


@pytest.mark.slow
def test_without_a_scorer_that_compares_answers_nothing_is_shown(tmp_path: Path) -> None:
    loop = make_loop(rewards=[{"name": "user_feedback"}], holdout={"similarity": "auto"})
    _, _, rule = frozen(tmp_path, batch(spans(*templated())), loop=loop)
    assert (rule.similarity, sum(rung.pairs for rung in rule.measured)) == (RUNGS[0], 0)


@pytest.mark.slow
def test_right_answers_that_the_scorers_do_not_accept_show_nothing(tmp_path: Path) -> None:
    """`final_number` takes a bare number as a reference, and not as an answer."""
    _, _, rule = frozen(tmp_path, batch(spans(*templated("{}"))))
    assert (rule.similarity, sum(rung.pairs for rung in rule.measured)) == (RUNGS[0], 0)


@pytest.mark.slow
def test_without_near_duplicates_there_is_no_rule(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(holdout={"near_duplicates": False}))
    datasets.ingest(batch(spans(*templated())))
    assert datasets.freeze("s", LATER, datasets.edition(1)).near is None


def question(number: int, answer: str = "", **more: Any) -> Question:
    text = TEMPLATE.format(137 + 61 * number)
    system = [{"role": "system", "content": more["system"]}] if "system" in more else []
    messages = [*system, {"role": "user", "content": text}]
    return Question(normalise(text), messages, more.get("tools"), answer or f"A: {number}")


def by_text(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, float | None]]:
    return [{"same": float(sample["answer"] == sample["reference"])} for sample in samples]


def counts_of(questions: list[Question], compare: Compare = by_text) -> tuple[int, int]:
    """The numbers of pairs and of different questions among them."""
    found = compared(questions, compare)
    return sum(rung.pairs for rung in found), sum(rung.different for rung in found)


def test_prompts_with_other_documents_are_not_compared() -> None:
    assert counts_of([question(n, system=f"Document {n}") for n in range(40)]) == (0, 0)
    pairs, different = counts_of([question(n, system="Be short.") for n in range(40)])
    assert pairs == different > 30


def test_a_scorer_that_abstains_shows_nothing() -> None:
    def abstaining(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, float | None]]:
        return [{"same": 1.0 if sample["answer"] == sample["reference"] else None} for sample in samples]

    def only_one_fails(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, float | None]]:
        return [one | {"tolerant": 1.0 if one["same"] else None} for one in by_text(samples)]

    questions = [question(n) for n in range(40)]
    assert counts_of(questions, abstaining) == (0, 0)
    assert counts_of(questions, only_one_fails) == (0, 0)


def test_a_scorer_that_accepts_both_answers_makes_one_question_of_two() -> None:
    def tolerant(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, float | None]]:
        return [one | {"tolerant": 1.0} for one in by_text(samples)]

    pairs, different = counts_of([question(n) for n in range(40)], tolerant)
    assert (pairs > 30, different) == (True, 0)


def test_calls_of_tools_are_compared_as_calls() -> None:
    tools = json.dumps([{"type": "function", "function": {"name": "pump", "parameters": {}}}])
    calls = [json.dumps([{"name": "pump", "arguments": {"litres": n}}]) for n in range(40)]
    scorers = build_scorer_set([RewardSettings(name="tool_call_match")])
    pairs, different = counts_of([question(n, call, tools=tools) for n, call in enumerate(calls)], scorers.compare)
    assert pairs == different > 30


@pytest.mark.slow
def test_one_user_does_not_separate_prompts_alone(tmp_path: Path) -> None:
    calls = [one | {"attributes": [*one["attributes"], attribute("user.id", "mallory")]} for one in templated()[:COUNT]]
    _, _, rule = frozen(tmp_path, batch(spans(*calls, *others())))
    assert rule.similarity == RUNGS[0]
    assert sum(rung.pairs for rung in rule.measured) <= 3


@pytest.mark.slow
def test_of_a_conversation_only_the_first_call_counts(tmp_path: Path) -> None:
    records = []
    for n in range(COUNT):
        first = {"role": "user", "content": TEMPLATE.format(137 + 61 * n)}
        later = [first, {"role": "assistant", "content": "A: 1"}, {"role": "user", "content": "Are you sure?"}]
        for turn, messages in enumerate(([first], later)):
            stamp = f"2026-10-30T0{turn}:00:00Z"
            told = {"id": f"c{n}-{turn}", "timestamp": stamp, "messages": messages, "response": "A: 1", "model": "m", "consent": True}
            records.append(told | {"user_id": f"u{n}", "reference": f"A: {24 * (137 + 61 * n)}" if turn == 0 else "A: 7"})
    lines = "".join(json.dumps(one) + "\n" for one in records).encode()
    datasets = make_datasets(tmp_path, make_loop(holdout={"similarity": "auto"}))
    datasets.ingest(batch(spans(*others())))
    datasets.ingest(raw(lines, "app", "jsonl"))
    rule = datasets.freeze("s", LATER, datasets.edition(1)).near
    assert rule is not None
    assert rule.similarity > RUNGS[0]


@pytest.mark.parametrize(
    ("counts", "least"),
    [
        ([(0, 0), (0, 0), (0, 0)], 0.8),
        ([(13, 13), (0, 0), (0, 0)], 0.8),
        ([(14, 14), (0, 0), (0, 0)], 0.9),
        ([(30, 27), (0, 0), (0, 0)], 0.8),
        ([(30, 28), (0, 0), (0, 0)], 0.9),
        ([(30, 23), (500, 500), (500, 500)], 0.8),
        ([(10, 10), (40, 40), (13, 13)], 0.95),
        ([(10, 0), (40, 40), (29, 29)], 0.8),
        ([(29, 0), (29, 0), (30, 30)], 0.8),
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
