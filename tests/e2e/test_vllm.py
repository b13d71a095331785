"""A whole cycle whose champion and candidate the real vLLM serves, on a CPU: training, gate, rollout, promotion, and the way back."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
import pytest

from ratchet.contracts.data.senders import Role
from ratchet.contracts.ids import cycle_stream, rollout_stream
from ratchet.contracts.steps import State
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from tests.real_vllm import ARGUMENTS, vllm_program
from tests.toy_line import GOLDEN, LINE, Users, answer, ratchet, serving, write_loop, write_model, write_traffic
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def served(folder: Path) -> set[str]:
    """Return the models below a folder that vLLM's API servers serve."""
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    found = [command[command.index("--model") + 1] for command in commands if "vllm.entrypoints.openai.api_server" in command]
    return {model for model in found if model.startswith(str(folder))}


def test_a_cycle_is_served_by_vllm_and_goes_back(tmp_path: Path) -> None:
    program = vllm_program(tmp_path)
    home, loop, log = Home(tmp_path / "home"), write_loop(tmp_path), tmp_path / "serve.log"
    options = f'kind = "vllm"\n[serving.options]\nexecutable = "{program}"\narguments = {json.dumps(ARGUMENTS)}\n'
    loop.write_text(loop.read_text().replace("[serving.options]\nthreads = 1\n", f"[serving]\n{options}"))
    ratchet(home, "adopt", loop, write_model(tmp_path), "--by", "ada")
    installation = Installation(home)
    write_traffic(tmp_path)
    token = open_credentials(home, LINE).add("people", [Role.FEEDBACK]).read_text()
    together = 0

    def ended() -> bool:
        nonlocal together
        together = max(together, len(served(home.root)))
        view = installation.cycle(LINE, 1)
        return view is not None and view.ended

    begun = time.monotonic()
    with (
        serving(home, loop, log),
        Users(home, LINE, token, lambda: bool(installation.ledger.read(rollout_stream(cycle_stream(LINE, 1))))) as users,
    ):
        until(ended, 1200, pause=0.5, why=lambda: log.read_text()[-3000:])
        cycle = installation.cycle(LINE, 1)
        assert cycle is not None
        assert cycle.state is State.PROMOTED, cycle.reason
        assert together == 2  # champion and candidate at the same time
        assert cycle.candidate is not None
        until(lambda: answer(home, GOLDEN[0]) == "yes", 60)
        promoted = time.monotonic() - begun
        ratchet(home, "rollback", LINE, "--by", "ada", "--why", "a trial")
        until(lambda: answer(home, GOLDEN[0]) == "no", 300, pause=0.5, why=lambda: log.read_text()[-3000:])
        print(f"promoted after {promoted:.0f} s, the former answers after {time.monotonic() - begun:.0f} s")
        until(lambda: installation.line(LINE).champion.number == 0, 60)
        assert len(users.answered) > 3
    until(lambda: not served(home.root), 120)
