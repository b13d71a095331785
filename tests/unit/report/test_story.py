"""A cycle's story follows from its rows: every life of the simulation can be told, at any moment, in words and as a page."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from contracts.cycle import State
from contracts.errors import Permanent
from contracts.exits import Outcome
from contracts.ids import rollout_stream
from contracts.training import Adjustment, Method, Proposal
from flows.core.views import fold_rollout
from flows.report.page import render
from flows.report.story import ledger_table, tell
from tests.simulation.town import Scenario, Town

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def lived(**how) -> Town:
    town = Town(Scenario(seed=1, **how))
    town.live()
    return town


def words(town: Town) -> str:
    rows = town.ledger.read(rollout_stream(town.cycle_stream()))
    sections = tell(town.ledger.read(town.cycle_stream()), fold_rollout(rows) if rows else None)
    cells = [cell for s in sections if s.table for row in s.table.rows for cell in row]
    return "\n".join([*(s.title for s in sections), *(t for s in sections for t in s.text), *cells])


def test_a_promotion_is_told_with_its_figures_and_its_people() -> None:
    story = words(lived())
    assert "Ended: promoted" in story
    assert "ada approved it (identity claimed, by cli)" in story
    assert "0.500" in story
    assert "+0.200 (+0.150 to +0.250)" in story
    assert "5 % at" in story


def test_an_adjusted_attempt_is_told_with_its_cause_and_where_it_went_on() -> None:
    asks = (Proposal(rule="kl", adjustment=Adjustment(kl=2.0), good=1),)
    story = words(lived(outcomes=(Outcome.FAILED,), asks=asks))
    assert "Attempt 1 was stopped by the rule 'kl': scripted failed." in story
    assert "Attempt 2 ran with the pull to the start model (beta) × 2, from step 1 of attempt 1, the last good one" in story


@pytest.mark.parametrize(
    ("how", "state", "word"),
    [
        ({"difference": -0.2}, State.REJECTED, "The candidate fails"),
        ({"difference": 0.0}, State.HELD, "inconclusive holds"),
        ({"bad_canary": True}, State.ROLLED_BACK, "the rollout went back at 25 %"),
        ({"people": "no"}, State.REJECTED, "ada rejected the training"),
        ({"people": "never"}, State.EXPIRED, "nobody answered"),
        ({"method": Method.NONE}, State.NOT_TRAINED, "scripted"),
        ({"people": "auto"}, State.PROMOTED, "nobody was asked"),
    ],
)
def test_every_end_is_told(how: dict, state: State, word: str) -> None:
    town = lived(**how)
    assert town.view().state is state
    assert word in words(town)


def test_a_story_can_be_told_after_every_single_row() -> None:
    town = lived()
    entries = town.ledger.read(town.cycle_stream())
    for n in range(1, len(entries) + 1):
        assert tell(entries[:n], None)


def test_the_page_holds_everything_and_nothing_from_outside() -> None:
    town = lived()
    page = render(town.ledger, town.world.artifacts, "sim", NOW)
    assert "cycle/sim/0001" in page
    assert "<svg" in page
    assert "promoted" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page
    for row in ledger_table(town.ledger.read(town.cycle_stream())).rows:
        assert row[4] in page


def test_a_ledger_that_was_changed_has_no_report() -> None:
    town = lived()
    rows = town.ledger.rows[town.cycle_stream()]
    rows[0] = rows[0].model_copy(update={"data": {**rows[0].data, "reason": "another one"}})
    with pytest.raises(Permanent, match="the ledger was changed"):
        render(town.ledger, town.world.artifacts, "sim", NOW)


def test_words_of_people_cannot_become_markup() -> None:
    town = Town(Scenario(seed=1, people="no"))
    town.note = "<script>alert(1)</script>"
    town.live()
    page = render(town.ledger, town.world.artifacts, "sim", NOW)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
