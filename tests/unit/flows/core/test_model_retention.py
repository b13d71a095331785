"""Tests of the rule which models may be deleted: nothing that may be needed ever is, and all the rest is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.fakes import fake_model
from ratchet.contracts.loop import RetentionSettings
from ratchet.contracts.serving import ModelVersion
from ratchet.flows.core.folds.line import LineView
from ratchet.flows.core.model_retention import KEPT, Generation, expired_models, folders_of

NOW = datetime(2026, 9, 1, tzinfo=UTC)


def version(number: int, parent: str | None = None, merged: bool = False) -> ModelVersion:
    model = fake_model(f"{number}")
    if parent is not None:
        model = model.model_copy(update={"parent": fake_model(parent).files, "merged": fake_model(f"{number}m") if merged else None})
    return ModelVersion(line="shop", number=number, tag=f"v-{number}", model=model, cycle=f"cycle/shop/{number:04}" if number else None)


@st.composite
def lines(draw: st.DrawFn) -> tuple[LineView, list[Generation], set[str], RetentionSettings]:
    """Draw a line with versions that were promoted, failed or rolled back, and settings."""
    count = draw(st.integers(0, 12))
    versions = [version(number) for number in range(1, count + 1)]
    numbers = st.sets(st.integers(1, 12))
    served = [version(0), *(one for one in versions if one.number in draw(numbers))]
    ages = draw(st.lists(st.integers(0, 60), min_size=count, max_size=count))
    is_open = draw(st.booleans())
    made = [Generation(one, NOW - timedelta(days=age)) for one, age in zip(versions, sorted(ages, reverse=True), strict=True)]
    if made and is_open:
        made[-1] = Generation(made[-1].version, None)
    line = LineView(
        line="shop",
        seq=1,
        base=version(0),
        champion=served[-1],
        previous=served[-2] if len(served) > 1 else None,
        served=tuple(served),
        recalled={f"v-{number}": "erased" for number in draw(numbers)},
    )
    in_use = {f"v-{number}" for number in draw(numbers)}
    days = draw(st.one_of(st.none(), st.integers(1, 60)))
    pinned = tuple(draw(numbers))
    return line, made, in_use, RetentionSettings(models=days, pinned_models=pinned)


@given(lines())
def test_only_what_nothing_needs_expires_and_all_of_that(
    drawn: tuple[LineView, list[Generation], set[str], RetentionSettings],
) -> None:
    line, made, in_use, settings = drawn
    gone = {one.tag for one in expired_models(line, made, in_use, settings, NOW)}
    served = [one.tag for one in line.served]
    needed = {
        "adopted": {"v-0"},
        "serves": {served[-1]},
        "previous": set(served[-2:-1]),
        "rollbacks": set(served[-KEPT:]),
        "newest": {one.version.tag for one in made[-KEPT:]},
        "in use": in_use,
        "pinned": {f"v-{number}" for number in settings.pinned_models},
        "recalled": set(line.recalled),
        "open": {one.version.tag for one in made if one.ended_at is None},
    }
    for why, tags in needed.items():
        assert not gone & tags, why
    old = {
        one.version.tag
        for one in made
        if settings.models is not None and one.ended_at is not None and NOW - one.ended_at > timedelta(days=settings.models)
    }
    assert gone == old - set().union(*needed.values())


def test_without_a_setting_every_model_stays() -> None:
    made = [Generation(version(number), NOW - timedelta(days=1000)) for number in range(1, 10)]
    assert expired_models(LineView("shop", 1), made, (), RetentionSettings(), NOW) == []


def test_a_version_needs_its_base_and_its_merged_model() -> None:
    adapter = version(3, parent="0", merged=True)
    assert folders_of([adapter]) == {fake_model("3").files, fake_model("0").files, fake_model("3m").files}
