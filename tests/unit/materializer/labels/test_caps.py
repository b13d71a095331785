"""Tests of the caps per person: feedback counts for the person who gave it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ratchet.materializer.labels.scores import pseudonym
from tests.unit.materializer.conftest import make_datasets, make_loop, pseudonym_of
from tests.unit.materializer.records import evaluation, span
from tests.unit.materializer.small_datasets import TRAIN, assembled, rows


def lines(folder: Path) -> Any:
    return make_datasets(folder, make_loop(rewards=[{"name": "user_feedback"}], snapshot={"pairs_per_person": 2}))


def by(who: str | None, name: str, value: float | None = None, text: str | None = None) -> Any:
    rater = {} if who is None else {"user__id": who}
    return evaluation(name, value, text=text, **rater) if text else evaluation(name, value, **rater)


def asked(number: int, answer: str, said: Any, user: str | None) -> dict[str, Any]:
    return span(number + 1, TRAIN[number % len(TRAIN)], answer, [said], user__id=user)


@pytest.mark.slow
@pytest.mark.parametrize("raters", [["mallory"] * 8, [None] * 8])
def test_corrections_count_for_their_author(raters: list[str | None], tmp_path: Path) -> None:
    """The cap limits pairs and demonstrations, both for corrections of other users' traces and for anonymous corrections."""
    askers = [f"user-{n}" for n in range(8)] if raters[0] else [None] * 8
    # If some users have an id, all users without an id count as one person.
    named = [] if raters[0] else [asked(9, "fine", by("ada", "user_feedback", 1.0), "ada")]
    items = named + [asked(n, "no", by(raters[n], "user_correction", text="yes"), askers[n]) for n in range(8)]
    datasets = lines(tmp_path)
    training, pairs = assembled(datasets, *items)
    assert (len(pairs), len(rows(datasets, training.demonstrations)), training.facts.corrections) == (2, 2, 8)
    assert training.facts.pairs_dropped == {"per_person": 6}


@pytest.mark.slow
def test_no_cap_per_person_applies_if_no_user_has_an_id(tmp_path: Path) -> None:
    """With a cap, an application that logs no user ids would yield almost no training data."""
    _, pairs = assembled(lines(tmp_path), *[asked(n, "no", by(None, "user_correction", text="yes"), None) for n in range(8)])
    assert len(pairs) == 8


@pytest.mark.slow
def test_corrections_without_a_rater_count_for_the_author_of_the_request(tmp_path: Path) -> None:
    items = [asked(n, "no", by(None, "user_correction", text="yes"), f"user-{n}") for n in range(8)]
    _, pairs = assembled(lines(tmp_path), *items)
    assert len(pairs) == 8


@pytest.mark.slow
def test_ratings_count_for_the_rater(tmp_path: Path) -> None:
    datasets = lines(tmp_path)
    training, _ = assembled(datasets, *[asked(n, f"a{n}", by("mallory", "user_feedback", 1.0), f"user-{n}") for n in range(4)])
    snapshot = datasets.freeze("s", datasets.clock.now(), datasets.edition(1))
    users = {row["user"] for row in rows(datasets, snapshot.samples) if row["tier"] == "feedback"}
    assert users == {pseudonym(pseudonym_of(datasets, "u", "mallory"), "ratchet")}
    assert sum(training.facts.demonstrations.values()) <= 2
