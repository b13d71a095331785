"""Tests of the answers of teachers: which of them count, by which rule, and with which weight."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pytest

from ratchet.contracts.data.datasets import Label
from ratchet.contracts.data.records import PROMPTS, SAMPLES, Tier
from ratchet.contracts.loop import RewardSettings
from ratchet.materializer.labels.teachers import LEVEL, TeacherLabels, bounds
from ratchet.materializer.lake.schemas import empty_frame
from ratchet.rewards.scorer_set import build_scorer_set

EXACT = build_scorer_set([RewardSettings(name="exact_match")])


class Form:
    """A scorer of the form alone: it knows no right answer."""

    def verify(self, samples: Sequence[Mapping[str, Any]]) -> list[Label]:
        """Score 1 for answers that begin with a letter."""
        return [Label(float(one["answer"][:1].isalpha()), Tier.VERIFIABLE, {"form": 1.0}, 0) for one in samples]


def answers(*rows: tuple[str, str | None, str | None, str], version: str = "v1", near: str | None = None) -> pl.DataFrame:
    """Rows (prompt, slice, known right answer, answer of the teacher)."""
    made = [
        {
            **{"prompt_id": prompt, "cluster": near or prompt, "trace": f"app/{prompt}", "text": text, "signal": version},
            **{"prompt": json.dumps([{"role": "user", "content": prompt}]), "reference": reference, "slice": group, "tools": None},
            "reference_kind": None if reference is None else "reference",
        }
        for prompt, group, reference, text in rows
    ]
    types = dict.fromkeys(("cluster", "trace", "text", "signal", *(column.name for column in PROMPTS)), pl.String)
    return pl.DataFrame(made, schema=types)


def measured(group: str | None, right: int, wrong: int) -> list[tuple[str, str | None, str | None, str]]:
    """Questions of a slice whose right answer is known, and of which the teacher gets some wrong."""
    return [(f"{group}{n}", group, "yes", "yes" if n < right else "no") for n in range(right + wrong)]


def samples(labels: TeacherLabels, *prompts: str) -> list[dict[str, Any]]:
    """The samples that are added to those of some prompts."""
    base = empty_frame(PROMPTS).select("prompt_id")
    some = pl.concat([base, pl.DataFrame({"prompt_id": list(prompts)}, schema=base.schema)])
    rows = pl.DataFrame([{column.name: None for column in SAMPLES} | {"prompt_id": one} for one in some["prompt_id"].to_list()])
    known = empty_frame(SAMPLES)
    rows = rows.select([pl.col(name).cast(kind) for name, kind in known.schema.items()])
    return labels.added_to(rows).filter(pl.col("origin") == "teacher").to_dicts()


def test_the_bounds_are_exact() -> None:
    """Clopper and Pearson: with all of n right, the lower bound is the nth root of the error."""
    assert bounds(0, 0) == (0.0, 1.0)
    low, high = bounds(20, 20)
    assert (low, high) == (pytest.approx((1 - LEVEL) ** (1 / 20)), 1.0)
    low, high = bounds(0, 20)
    assert (low, high) == (0.0, pytest.approx(1 - (1 - LEVEL) ** (1 / 20)))
    assert bounds(5, 10)[0] == pytest.approx(0.1871, abs=1e-4)


def test_a_confidently_wrong_slice_is_caught_although_the_teacher_is_right_elsewhere() -> None:
    """Over both slices the teacher agrees in three cases of four, which would pass; each slice is measured alone."""
    rows = [*measured("sums", 45, 0), *measured("dates", 0, 15), ("s", "sums", None, "yes"), ("d", "dates", None, "no")]
    assert bounds(45, 60)[0] < 0.7 < bounds(45, 60)[1]
    labels = TeacherLabels(answers(*rows), EXACT, 0.6)
    assert bounds(45, 60)[0] > 0.6, "the pooled agreement would pass"
    beliefs = {one.slice: one for one in labels.beliefs}
    assert (beliefs["sums"].used, beliefs["dates"].used, beliefs["dates"].refuted) == (True, False, True)
    assert [row["answer"] for row in samples(labels, "s", "d")] == ["yes"]


def test_the_lower_bound_of_the_agreement_is_the_reward() -> None:
    labels = TeacherLabels(answers(*measured(None, 29, 1), ("q", None, None, "yes")), EXACT, 0.7)
    (row,) = samples(labels, "q")
    assert (row["tier"], row["reward"], row["origin"]) == ("teacher", pytest.approx(bounds(29, 30)[0]), "teacher")
    assert json.loads(row["parts"]) == {"teacher": row["reward"]}
    (belief,) = labels.beliefs
    assert (belief.compared, belief.agreeing, belief.believed, belief.confirmed, belief.refused) == (30, 29, 1, 29, 1)


def test_a_teacher_that_nobody_has_measured_is_not_believed() -> None:
    labels = TeacherLabels(answers(("q", None, None, "yes")), EXACT, 0.7)
    assert samples(labels, "q") == []
    assert labels.beliefs[0].reason == "its agreement with people is not measured"


def test_other_versions_and_slices_lend_nothing() -> None:
    known = answers(*measured("a", 40, 0), version="old")
    labels = TeacherLabels(pl.concat([known, answers(("q", "a", None, "yes"), ("r", "b", None, "yes"), version="new")]), EXACT, 0.7)
    assert samples(labels, "q", "r") == []


def test_near_duplicates_are_one_case() -> None:
    rows = answers(*measured(None, 40, 0), near="one")
    labels = TeacherLabels(rows, EXACT, 0.7)
    assert (labels.beliefs[0].compared, labels.beliefs[0].used) == (1, False)


def test_a_scorer_without_a_right_answer_confirms_the_form_and_refuses_another_one() -> None:
    labels = TeacherLabels(answers(("q", None, None, "yes"), ("r", None, None, "17")), Form(), 0.7)
    (row,) = samples(labels, "q", "r")
    assert (row["answer"], row["tier"], row["reward"]) == ("yes", "verifiable", 1.0)
    assert (labels.beliefs[0].confirmed, labels.beliefs[0].refused) == (1, 1)


def test_the_right_form_does_not_save_a_slice_that_people_contradict() -> None:
    class Both:
        """The form, and the right answer where it is known."""

        def verify(self, found: Sequence[Mapping[str, Any]]) -> list[Label]:
            """Score by the right answer, else by the form."""
            return [Label(float(one["reference"] in (None, one["answer"])), Tier.VERIFIABLE, {"both": 1.0}, 0) for one in found]

    labels = TeacherLabels(answers(*measured("a", 0, 20), ("q", "a", None, "no")), Both(), 0.7)
    assert labels.beliefs[0].refuted
    assert samples(labels, "q") == []


def test_without_a_teacher_in_the_loop_file_no_answer_counts() -> None:
    labels = TeacherLabels(answers(*measured(None, 40, 0), ("q", None, None, "yes")), EXACT, None)
    assert (samples(labels, "q"), labels.beliefs) == ([], ())
