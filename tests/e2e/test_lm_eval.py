"""A whole cycle whose gate also asks a task of the real lm-evaluation-harness."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.contracts.data.senders import Role
from ratchet.contracts.ids import cycle_stream, rollout_stream
from ratchet.contracts.steps import State
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from tests.real_lm_eval import GENERATES, real_lm_eval, write_task
from tests.toy_line import GOLDEN, LINE, Users, ratchet, serving, write_loop, write_model, write_traffic
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SUITE = """[gate.suites.places]
margin = 0.2
max_tokens = 4
[gate.suites.places.lm_eval]
task = "places"
folder = "tasks"
python = "{python}"
[rollout]
"""


@pytest.mark.parametrize(("right", "state", "result"), [("yes", State.PROMOTED, "pass"), ("no", State.REJECTED, "fail")])
def test_a_task_of_lm_eval_decides_with_the_gate(tmp_path: Path, right: str, state: State, result: str) -> None:
    python = real_lm_eval()
    home, loop, log = Home(tmp_path / "home"), write_loop(tmp_path), tmp_path / "serve.log"
    (tmp_path / "tasks").mkdir()
    data = tmp_path / "tasks" / "places.jsonl"
    data.write_text("".join(json.dumps({"question": question, "answer": right}) + "\n" for question in GOLDEN))
    write_task(tmp_path / "tasks", "places", GENERATES, str(data))
    loop.write_text(loop.read_text().replace("[rollout]\n", SUITE.format(python=python)))
    assert f"{len(GOLDEN)} documents of the task places, asked and scored by lm-eval" in ratchet(home, "check", loop)
    ratchet(home, "adopt", loop, write_model(tmp_path), "--by", "ada")
    write_traffic(tmp_path)
    token = open_credentials(home, LINE).add("people", [Role.FEEDBACK]).read_text()
    installation = Installation(home)

    def ended() -> bool:
        view = installation.cycle(LINE, 1)
        return view is not None and view.ended

    stream = rollout_stream(cycle_stream(LINE, 1))
    with serving(home, loop, log), Users(home, LINE, token, lambda: bool(installation.ledger.read(stream))):
        until(ended, 600, pause=0.5, why=lambda: log.read_text()[-3000:])
    cycle = installation.cycle(LINE, 1)
    assert cycle is not None
    assert cycle.state is state, cycle.reason
    told = ratchet(home, "explain", f"{LINE}/1")
    assert "places (lm-eval " in told
    assert result in told
