"""An erasure after a real training: the version that learnt from the erased rows is recalled, and no file of the home has their texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.contracts.data.senders import Role
from ratchet.contracts.ids import cycle_stream
from ratchet.contracts.steps import AcceptResult, State
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from ratchet.flows.engine.line import open_cycle
from tests.markers import marker, marks_in, user
from tests.toy_line import TRAINING, Users, ratchet, serving, write_loop, write_model
from tests.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]
LINE = "toy"
PEOPLE = 20


def write_marked_traffic(folder: Path) -> None:
    """Write the recorded traffic: a hundred questions of twenty people, each with the marker of its person in the question."""
    fixed = {"timestamp": "2026-10-01T00:00:00Z", "response": "no", "reference": "yes", "consent": True}
    rows = [
        {"id": str(n), "messages": f"{marker(n % PEOPLE)} {question}", "user_id": user(n % PEOPLE), **fixed}
        for n, question in enumerate(TRAINING)
    ]
    (folder / f"traces-{LINE}" / "recorded.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_version_that_was_trained_on_erased_rows_is_recalled_and_nothing_of_the_people_is_left(tmp_path: Path) -> None:
    home, loop = Home(tmp_path / "home"), write_loop(tmp_path)
    loop.write_text(loop.read_text().replace("max_length = 48", "max_length = 96"))
    ratchet(home, "adopt", loop, write_model(tmp_path), "--by", "ada")
    installation = Installation(home)
    write_marked_traffic(tmp_path)
    token = open_credentials(home, LINE).add("people", [Role.FEEDBACK]).read_text()
    gone, others = set(range(5)), set(range(5, PEOPLE))
    ids = tmp_path / "users.txt"
    ids.write_text("".join(f"{user(n)}\n" for n in gone))

    def ended() -> bool:
        view = installation.cycle(LINE, 1)
        return view is not None and view.ended

    log = tmp_path / "serve.log"
    with (
        serving(home, loop, log),
        Users(home, LINE, token, lambda: len(installation.ledger.read(cycle_stream(LINE, 1))) >= 2),
    ):
        until(ended, 600, pause=0.5, why=lambda: log.read_text()[-3000:])
        cycle = installation.cycle(LINE, 1)
        assert cycle is not None
        assert (cycle.state, cycle.candidate is not None) == (State.PROMOTED, True), cycle.reason
        assert cycle.result(AcceptResult).checkpoint.metrics, "the training was real"
        assert gone <= marks_in(home.root).keys()
        receipt = json.loads(ratchet(home, "erase", "--users-file", ids, "--json"))

    assert cycle.candidate is not None
    [line] = receipt["lines"]
    assert [(one["tag"], one["champion"]) for one in line["recalled"]] == [(cycle.candidate.tag, True)]
    assert line["rows"]["traces"] == 25
    assert not any(user(n) in json.dumps(receipt) for n in range(PEOPLE))
    found = marks_in(home.root)
    assert {n: found[n] for n in gone & found.keys()} == {}
    assert others <= found.keys()
    view = installation.line(LINE)
    assert view.champion is not None
    assert view.champion.tag == cycle.candidate.tag  # it serves until it is replaced
    assert cycle.candidate.tag in view.recalled
    context = installation.context(loop)
    opened = context.cycle_view(open_cycle(context, "after the erasure"))
    assert (opened.start.number, opened.baseline.number, opened.champion.tag) == (0, 0, cycle.candidate.tag)
