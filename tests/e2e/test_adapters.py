"""Two cycles of a line whose candidates are adapters: training, gate, rollout, promotion, and a training that starts from an adapter.

In `make test`, `test_shared_process.py` runs a cycle whose candidate is an adapter.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from ratchet.contracts.data.senders import Role
from ratchet.contracts.ids import cycle_stream, rollout_stream
from ratchet.contracts.steps import PlanResult, State
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from tests.real_vllm import vllm_program
from tests.toy_line import GOLDEN, LINE, TRAINING, Users, adapted, answer, ratchet, serving, write_loop, write_model, write_traffic
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("server", [pytest.param("embedded", marks=pytest.mark.soak), "vllm"])
def test_a_line_trains_judges_serves_and_continues_adapters(tmp_path: Path, server: str) -> None:
    program = vllm_program(tmp_path) if server == "vllm" else None
    home, log = Home(tmp_path / "home"), tmp_path / "serve.log"
    loop = adapted(write_loop(tmp_path), program)
    ratchet(home, "check", loop)
    ratchet(home, "adopt", loop, write_model(tmp_path), "--by", "ada")
    installation = Installation(home)
    write_traffic(tmp_path)
    token = open_credentials(home, LINE).add("people", [Role.FEEDBACK]).read_text()

    def ended(number: int) -> bool:
        view = installation.cycle(LINE, number)
        return view is not None and view.ended

    def why() -> str:
        return log.read_text()[-3000:]

    begun = time.monotonic()
    with (
        serving(home, loop, log),
        Users(home, LINE, token, lambda: bool(installation.ledger.read(rollout_stream(cycle_stream(LINE, 1))))),
    ):
        until(lambda: ended(1), 1200, pause=0.5, why=why)
        cycle = installation.cycle(LINE, 1)
        assert cycle is not None
        assert cycle.state is State.PROMOTED, cycle.reason
        base, model = installation.line(LINE).base, cycle.candidate.model
        assert model.parent == base.model.files
        assert model.merged is not None
        until(lambda: answer(home, GOLDEN[0]) == "yes", 120)
        print(f"promoted after {time.monotonic() - begun:.0f} s")
        if program is not None:  # the next cycle needs nothing more of the server, and each start of vLLM takes half a minute
            return

        more = [
            {"id": f"n{number}", "messages": question, "timestamp": "2026-10-02T00:00:00Z", "response": "no", "reference": "yes"}
            for number, question in enumerate(TRAINING)
        ]
        part = tmp_path / "more.part"
        part.write_text("".join(json.dumps(row | {"consent": True}) + "\n" for row in more))
        part.rename(tmp_path / f"traces-{LINE}" / "more.jsonl")
        ratchet(home, "run", LINE)
        until(lambda: ended(2), 1200, pause=0.5, why=why)
        second = installation.cycle(LINE, 2)
        assert second is not None
        assert second.result(PlanResult).plan.start == model.merged
        assert second.candidate is not None, second.reason
        assert second.candidate.model.parent == model.merged.files

    ratchet(home, "model", "fetch", f"{LINE}/1", tmp_path / "copy")
    assert json.loads((tmp_path / "copy" / "adapter_config.json").read_bytes())["base_model_name_or_path"] == base.model.files
    ratchet(home, "model", "fetch", f"{LINE}/1", tmp_path / "whole", "--merged")
    assert set(load_file(tmp_path / "whole" / "model.safetensors")) == set(load_file(tmp_path / "copy" / "base" / "model.safetensors"))
    ratchet(home, "verify")
