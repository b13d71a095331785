"""Contract tests for the sides of prompts, in a SQLite file and on a real Postgres server."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import digest, hash_share, normalise
from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.materializer.lake.places.place import LakePlace
from ratchet.materializer.training_sets.near_duplicates import RECIPE, shingles, signature
from ratchet.materializer.training_sets.prompt_sides import FILE, Placed, PromptSides, Side
from tests.contract.stores import change, rows, run_and_kill

_WORDS = [
    "report",
    "order",
    "invoice",
    "delivery",
    "customer",
    "payment",
    "address",
    "account",
    "refund",
    "parcel",
    "warehouse",
    "contract",
    "discount",
    "catalogue",
]


@pytest.fixture
def sides(database: PostgresDatabase | None, tmp_path: Path) -> PromptSides:
    return PromptSides(LakePlace(tmp_path, database=database))


def text(number: int, changed: int | None = None) -> str:
    """A text of 30 words; another one with the same number is a near-duplicate, with one word changed."""
    draw = random.Random(number)
    words = [draw.choice(_WORDS) + str(draw.randrange(100)) for _ in range(30)]
    if changed is not None:
        words[changed % len(words)] = f"changed{changed}"
    return normalise(" ".join(words))


def roots(*texts: str) -> dict[str, str]:
    return {digest(one.encode()): one for one in texts}


def held(root: str) -> bool:
    return hash_share("holdout", "s", root) < 0.5


def not_held(root: str) -> bool:
    return not held(root)


def many(count: int) -> dict[str, str]:
    """Texts and their near-duplicates, also such as join clusters."""
    return roots(*(text(number, changed) for number in range(count) for changed in (None, 1, 2)))


@pytest.mark.slow
def test_both_places_give_the_same_sides(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    texts = many(150)
    in_file, in_database = PromptSides(tmp_path / "file"), PromptSides(LakePlace(tmp_path / "lake", database=postgres_database))
    some = dict(sorted(texts.items())[::2])
    assert in_database.assign(some, held) == in_file.assign(some, held)
    assert in_database.assign(texts, held) == in_file.assign(texts, held)
    assert in_database.clusters() == in_file.clusters()
    assert len({placed.cluster for placed in in_database.assign(texts, held).values()}) == 150


def test_a_side_never_changes(sides: PromptSides) -> None:
    before = sides.assign(many(20), held)
    after = sides.assign(many(40), not_held)
    assert {root: after[root].side for root in before} == {root: placed.side for root, placed in before.items()}
    assert {placed.side for placed in after.values()} >= {Side.TRAIN, Side.HELD}


def test_an_interrupted_decision_leaves_nothing(sides: PromptSides) -> None:
    def crash(_root: str) -> bool:
        raise KeyboardInterrupt

    known = sides.assign(roots(text(1)), held)
    with pytest.raises(KeyboardInterrupt):
        sides.assign(roots(text(1), text(2), text(3)), crash)
    assert set(sides.clusters()) == set(known)


def test_signatures_are_kept_until_a_prompt_has_a_side_and_after(sides: PromptSides) -> None:
    texts = roots(text(1), text(2))
    signed = {root: signature(shingles(one)).tobytes() for root, one in texts.items()}
    assert sides.signatures(sorted(texts)) == {}
    assert set(sides.unsigned(texts)) == set(texts)
    sides.keep(signed)
    sides.keep(signed)
    assert sides.unsigned(texts) == []
    sides.assign(texts, held)
    assert sides.unsigned(texts) == []
    assert {root: found.tobytes() for root, found in sides.signatures(sorted(texts)).items()} == signed
    sides.keep(signed)
    assert sides.unsigned(texts) == []


def test_the_snapshot_whose_prompts_have_signatures_is_remembered(sides: PromptSides) -> None:
    assert sides.signed() is None
    sides.sign_until(2**62)
    sides.sign_until(2**61)
    assert sides.signed() == 2**61


def _assign(place: LakePlace, texts: dict[str, str], is_odd: bool) -> dict[str, Placed]:
    return PromptSides(place).assign(texts, not_held if is_odd else held)


@pytest.mark.slow
def test_processes_that_decide_the_same_prompts_agree(database: PostgresDatabase | None, tmp_path: Path) -> None:
    """They would decide differently, because each has another rule. Whoever comes second follows the first."""
    place, texts = LakePlace(tmp_path, database=database), many(30)
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        found = pool.starmap(_assign, [(place, texts, bool(number % 2)) for number in range(4)])
    assert found[0] == found[1] == found[2] == found[3] == PromptSides(place).assign(texts, held)


def test_the_database_refuses_to_change_a_side(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    PromptSides(LakePlace(tmp_path, database=postgres_database)).assign(roots(text(1)), held)
    with pytest.raises(Exception, match="never changes its side"):
        change(postgres_database, "UPDATE ratchet_prompts_math.prompts SET side = 2")
    change(postgres_database, "UPDATE ratchet_prompts_math.prompts SET recipe = 0")


def test_lines_have_their_own_sides(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    other = LakePlace(tmp_path / "other", database=PostgresDatabase(postgres_database.url, "other-line"))
    mine = PromptSides(LakePlace(tmp_path, database=postgres_database)).assign(roots(text(1)), held)
    theirs = PromptSides(other).assign(roots(text(1)), not_held)
    assert [one.side for one in mine.values()] != [one.side for one in theirs.values()]


def test_a_lost_volume_loses_no_side(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    place, texts = LakePlace(tmp_path / "home" / "lake", database=postgres_database), many(30)
    before = PromptSides(place).assign(texts, held)
    shutil.rmtree(tmp_path / "home", ignore_errors=True)
    assert not (tmp_path / "home").exists()
    after = PromptSides(place).assign(texts | many(60), not_held)
    assert {root: after[root].side for root in before} == {root: placed.side for root, placed in before.items()}


def test_an_upgrade_keeps_the_sides_of_the_file(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    texts = many(30)
    before = PromptSides(tmp_path).assign(texts, held)
    (tmp_path / FILE).rename(tmp_path / "copy")
    (tmp_path / "copy").rename(tmp_path / FILE)
    sides = PromptSides(LakePlace(tmp_path, database=postgres_database))
    assert set(sides.clusters()) == set(before), "a command that only reads sees them before they are copied"
    assert sides.assign(texts, not_held) == before
    (tmp_path / FILE).unlink()
    assert sides.assign(texts, not_held) == before


def test_the_file_of_the_first_release_is_copied_too(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    """It had no table of signatures, and a trigger with another name."""
    with closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
        connection.execute(
            "CREATE TABLE prompts (root TEXT PRIMARY KEY, side INTEGER NOT NULL, cluster TEXT NOT NULL, signature BLOB NOT NULL, "
            "recipe INTEGER NOT NULL) WITHOUT ROWID"
        )
        connection.execute("CREATE TABLE joins (one TEXT NOT NULL, other TEXT NOT NULL, UNIQUE (one, other))")
        ((root, one),) = roots(text(1)).items()
        signed = signature(shingles(one)).tobytes()
        connection.execute("INSERT INTO prompts VALUES (?, ?, ?, ?, ?)", (root, int(not held(root)), root, signed, RECIPE - 1))
    sides = PromptSides(LakePlace(tmp_path, database=postgres_database))
    found = sides.assign(roots(text(1), text(2)), held)
    assert found[root].side is Side(int(not held(root)))
    assert rows(postgres_database, f"SELECT count(*) FROM ratchet_prompts_math.prompts WHERE recipe = {RECIPE}") == [(2,)]


def test_a_former_release_decides_no_side_after_the_copy(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    """It does not see the sides that the database has decided since, so that a holdout prompt could become a training prompt."""
    PromptSides(tmp_path).assign(roots(text(1)), held)
    sides = PromptSides(LakePlace(tmp_path, database=postgres_database))
    before = sides.assign(many(10), lambda _: True)
    with pytest.raises(sqlite3.Error, match="database of RATCHET_LEDGER_URL"):
        PromptSides(tmp_path).assign(many(10), lambda _: False)
    assert PromptSides(LakePlace(tmp_path, database=postgres_database)).assign(many(10), lambda _: False) == before


_DECIDE = """
import sys, time
from pathlib import Path
from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.materializer.lake.places.place import LakePlace
from ratchet.materializer.training_sets.prompt_sides import PromptSides
from tests.contract.test_prompt_sides import many

asked = []
def is_held(root):
    asked.append(root)
    if len(asked) == 50:
        print("now", flush=True)
        time.sleep(60)
    return True
PromptSides(LakePlace(Path(sys.argv[2]), database=PostgresDatabase(sys.argv[1], "math"))).assign(many(30), is_held)
"""


@pytest.mark.slow
def test_a_killed_decision_leaves_the_sides_of_the_file(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    before = PromptSides(tmp_path).assign(many(5), held)
    run_and_kill(_DECIDE, postgres_database.url, tmp_path)
    after = PromptSides(LakePlace(tmp_path, database=postgres_database)).assign(many(30), held)
    assert {root: after[root].side for root in before} == {root: placed.side for root, placed in before.items()}
    assert {placed.side for placed in after.values()} == {Side.TRAIN, Side.HELD}, "nothing of the killed process, which held all"


def test_no_side_is_decided_while_the_database_is_away(tmp_path: Path) -> None:
    place = LakePlace(tmp_path, database=PostgresDatabase(f"postgresql+psycopg://ratchet@/db?host={tmp_path}", "math"))
    with pytest.raises(Retryable, match="ratchet_prompts_math"):
        PromptSides(place).assign(roots(text(1)), held)
