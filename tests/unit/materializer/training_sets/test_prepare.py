"""Tests that a freeze gives the same, whether or not its work was prepared, repeated, interrupted, or done without a shortcut."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import Snapshot
from ratchet.contracts.fakes import FakeCompute
from ratchet.contracts.ids import root_id, root_text
from ratchet.materializer import datasets as lake_datasets
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.labels import scores
from ratchet.materializer.training_sets import near_duplicates, prompt_sides, split
from ratchet.materializer.training_sets.near_duplicates import InMemorySignatures, clusters, may_be_near, shingles, signature
from ratchet.materializer.training_sets.prompt_sides import FILE, PromptSides
from ratchet.materializer.workers import signing
from tests.property_examples import examples
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import batch, evaluation, span, spans
from tests.unit.materializer.small_datasets import LATER

WORDS = [f"{start}{end}" for start in ("inv", "ord", "ship", "acc", "cat") for end in ("oice", "er", "ment", "ount", "alog", "ing", "s1")]


def texts(seed: int, count: int) -> list[str]:
    """Return texts of which some are rewordings of others, and some are made from one template."""
    draw, found = random.Random(seed), list[str]()
    for _ in range(count):
        kind = draw.random()
        if kind < 0.3 and found:
            words = draw.choice(found).split()
            words[draw.randrange(len(words))] = draw.choice(WORDS)
            found.append(" ".join(words))
        elif kind < 0.6:
            found.append(f"show me the logs of {draw.choice(WORDS)} in the last {draw.randrange(40)} minutes please")
        else:
            found.append(" ".join(draw.choice(WORDS) for _ in range(draw.randrange(1, 40))))
    return found


def roots(found: list[str]) -> dict[str, str]:
    """Map the roots of texts to the texts."""
    asked = [[{"role": "user", "content": text}] for text in found]
    return {root_id(messages): root_text(messages) for messages in asked}


def held(root: str) -> bool:
    """Return the decision by hash."""
    return int(root[:2], 16) < 100


@pytest.mark.slow
@settings(max_examples=examples(8, 25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000), cut=st.integers(0, 150))
def test_prompts_without_a_possible_near_duplicate_need_no_search(tmp_path_factory: pytest.TempPathFactory, seed: int, cut: int) -> None:
    """The result is that of a search for every prompt."""
    found, some = roots(texts(seed, 150)), roots(texts(seed, cut))
    short, full = (PromptSides(tmp_path_factory.mktemp("sides")) for _ in range(2))
    first, second = short.assign(some, held), short.assign(found, held)
    grouped = clusters(found)
    with pytest.MonkeyPatch.context() as patch:
        for module in (prompt_sides, near_duplicates):
            patch.setattr(module, "may_be_near", lambda rows, *_: np.ones(len(rows), dtype=bool))
        assert (full.assign(some, held), full.assign(found, held)) == (first, second)
        assert clusters(found) == grouped


def test_few_of_different_texts_may_be_near() -> None:
    drawn = [random.Random(seed) for seed in range(300)]
    found = [" ".join(f"{draw.choice(WORDS)}{draw.randrange(10_000)}" for _ in range(60)) for draw in drawn]
    found += [f"{found[0]} please"]
    near = may_be_near(InMemorySignatures(np.array([signature(shingles(text)) for text in found])))
    assert near[0]
    assert near[-1]
    assert near.sum() < 10


def traffic(datasets: LakeDatasets) -> None:
    """Ingest 120 questions with ratings and corrections, also of people without a name."""
    said = texts(3, 120)
    items: list[Any] = []
    for number, text in enumerate(said, 1):
        events = [evaluation("user_feedback", number % 2)] if number % 3 else [evaluation("user_correction", text=f"A: {number % 5}")]
        more = {"user__id": None} if number % 4 == 0 else {}
        items.append(span(number, text, events=events, metadata__reference=str(number % 5) if number % 7 == 0 else None, **more))
    datasets.ingest(batch(spans(*items[:60])))
    datasets.ingest(batch(spans(*items[60:])))


def frozen(datasets: LakeDatasets) -> tuple[Snapshot, str]:
    """Freeze the first edition and a snapshot."""
    edition = datasets.edition(1)
    return datasets.freeze("s", LATER, edition), edition.prompts


@pytest.mark.slow
def test_a_prepared_freeze_gives_the_same(tmp_path: Path) -> None:
    plain, prepared = _two(tmp_path)
    prepared.prepare()
    with closing(sqlite3.connect(prepared.lake.root / FILE)) as connection:
        assert connection.execute("SELECT count(*) FROM signatures").fetchone()[0] > 50
    snapshots = [frozen(datasets) for datasets in (plain, prepared)]
    assert snapshots[0][0].content == snapshots[1][0].content
    assert snapshots[0][0].counts == snapshots[1][0].counts
    assert snapshots[0][1] == snapshots[1][1]
    with closing(sqlite3.connect(prepared.lake.root / FILE)) as connection:
        assert connection.execute("SELECT count(*) FROM signatures").fetchone()[0] == 0, "they have moved to the prompts"


def _two(folder: Path) -> tuple[LakeDatasets, LakeDatasets]:
    found = make_datasets(folder / "one"), make_datasets(folder / "two")
    for datasets in found:
        traffic(datasets)
    return found


@pytest.mark.slow
def test_preparation_goes_on_where_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = make_datasets(tmp_path)
    traffic(datasets)
    monkeypatch.setattr(split, "_SIGNED", 10)
    computed, most = 0, 35

    def counting(found: Any) -> Any:
        nonlocal computed
        if computed == most:
            raise KeyboardInterrupt
        computed += 1
        return signature(found)

    for module in (prompt_sides, signing):
        monkeypatch.setattr(module, "signature", counting)
    with pytest.raises(KeyboardInterrupt):
        datasets.prepare()
    computed, most = 0, 1000
    datasets.prepare()
    with closing(sqlite3.connect(datasets.lake.root / FILE)) as connection:
        assert computed == connection.execute("SELECT count(*) FROM signatures").fetchone()[0] - 30, "three parts were kept"
    computed = 0
    datasets.prepare()
    frozen(datasets)
    assert computed == 0, "nothing is new, and the freeze computes no signature"


@pytest.mark.slow
def test_workers_prepare_and_score_with_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCompute()
    one, other = make_datasets(tmp_path / "one"), make_datasets(tmp_path / "other", compute=fake)
    traffic(one)
    traffic(other)
    one.prepare()
    monkeypatch.setattr(split, "_SIGNED", 10)
    monkeypatch.setattr(lake_datasets, "AT_ONCE", 9)
    other.prepare()
    stored = []
    for datasets in (one, other):
        with closing(sqlite3.connect(datasets.lake.root / FILE)) as connection:
            stored.append(connection.execute("SELECT * FROM signatures ORDER BY root").fetchall())
    assert stored[0] == stored[1]
    assert frozen(one)[0].content == frozen(other)[0].content
    assert {name.split()[0] for name in fake.begun} == {"prompts", "answers"}
    assert len(set(fake.begun)) > 8


@pytest.mark.slow
def test_prompts_are_not_prepared_where_near_duplicates_do_not_count(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(holdout={"near_duplicates": False}))
    traffic(datasets)
    datasets.prepare()
    assert not (datasets.lake.root / FILE).exists()


@pytest.mark.slow
def test_answers_are_scored_in_parts_with_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = _two(tmp_path)
    whole = frozen(one)[0]
    monkeypatch.setattr(scores, "AT_ONCE", 7)
    assert frozen(two)[0].content == whole.content
    assert whole.counts["corrections"] > 0


def _make_older(folder: Path) -> None:
    """Give the stored signatures the form of an earlier recipe."""
    with closing(sqlite3.connect(folder / FILE)) as connection, connection:
        connection.execute("DROP TRIGGER sides_never_change")
        for table in ("prompts", "signatures"):
            connection.execute(f"UPDATE {table} SET recipe = {near_duplicates.RECIPE - 1}, signature = zeroblob(500)")
        connection.execute("UPDATE signed_until SET recipe = recipe - 1")
        connection.execute(
            "CREATE TRIGGER sides_stay BEFORE UPDATE ON prompts BEGIN SELECT RAISE(ABORT, 'a prompt never changes its side'); END"
        )


@pytest.mark.slow
@pytest.mark.parametrize("prepared", [True, False])
def test_after_a_change_of_the_recipe_no_prompt_changes_its_side_and_signatures_are_computed_again(tmp_path: Path, prepared: bool) -> None:
    """Also near-duplicates of the prompts that were there before follow these."""
    before, after = texts(1, 120), [text + " now" for text in texts(1, 120) if len(text) > 60] + texts(2, 20)
    expected, upgraded = PromptSides(tmp_path / "one"), PromptSides(tmp_path / "other")
    sides = [store.assign(roots(before), held) for store in (expected, upgraded)]
    _make_older(tmp_path / "other")
    if prepared:
        unsigned = upgraded.unsigned(list(roots(before)))
        assert set(unsigned) == set(roots(before))
        upgraded.keep({root: signature(shingles(roots(before)[root])).tobytes() for root in unsigned})
        assert not upgraded.unsigned(list(roots(before)))
    found = [store.assign(roots([*before, *after]), held) for store in (expected, upgraded)]
    assert found[0] == found[1]
    assert {root: found[1][root].side for root in sides[1]} == {root: placed.side for root, placed in sides[0].items()}
    computed, again = (store.signatures(sorted(found[0])) for store in (expected, upgraded))
    assert computed.keys() == again.keys() == found[0].keys()
    assert all(np.array_equal(one, again[root]) for root, one in computed.items())


@pytest.mark.slow
def test_after_a_change_of_the_recipe_the_next_preparation_reads_all_prompts_again(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop())
    traffic(datasets)
    datasets.prepare()
    stored = PromptSides(datasets.lake.root)
    _make_older(datasets.lake.root)
    assert stored.signed() is None
    datasets.prepare()
    assert stored.signed() == datasets.lake.snapshot("traces")
    with closing(sqlite3.connect(datasets.lake.root / FILE)) as connection:
        assert connection.execute("SELECT DISTINCT recipe FROM signatures").fetchall() == [(near_duplicates.RECIPE,)]
