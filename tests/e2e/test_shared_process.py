"""A cycle whose candidate is an adapter in the champion's process: gate, rollout with a killed process, promotion, and the way back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from safetensors.numpy import load_file

from ratchet.contracts.data.senders import Role
from ratchet.contracts.ids import cycle_stream, rollout_stream
from ratchet.contracts.steps import State
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from ratchet.flows.engine.reconcile import reconcile
from tests import command
from tests.real_vllm import vllm_program
from tests.toy_line import GOLDEN, LINE, Users, adapted, answer, ratchet, write_loop, write_model, write_traffic
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Service:
    """The service of a line, which can be killed and started again. Its model servers survive it."""

    def __init__(self, home: Home, loop: Path, log: Path) -> None:
        self._home, self._loop, self._log = home, loop, log
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as out:
            return subprocess.Popen(
                [*command.RATCHET, "serve", str(self._loop)],
                env=command.environment(self._home.root),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def kill_and_start(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self.process = self._start()


@contextlib.contextmanager
def serving(home: Home, loop: Path, log: Path) -> Iterator[Service]:
    service = Service(home, loop, log)
    try:
        yield service
    finally:
        service.process.terminate()
        service.process.wait(120)
        ratchet(home, "serve", "--stop", loop)


def process_of(home: Home, tag: str) -> psutil.Process:
    return psutil.Process(json.loads((home.serving(LINE) / "servers" / tag / "ready.json").read_bytes())["pid"])


def loaded(home: Home, tag: str) -> set[str]:
    """Return the adapters that the process of a version lists."""
    port = json.loads((home.serving(LINE) / "servers" / tag / "ready.json").read_bytes())["port"]
    rows = httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=20, trust_env=False).json()["data"]
    return {row["id"] for row in rows if row.get("parent")}


@pytest.mark.parametrize("server", [pytest.param("embedded", marks=pytest.mark.soak), "vllm"])
def test_an_adapter_is_judged_rolled_out_and_withdrawn_in_the_champions_process(tmp_path: Path, server: str) -> None:
    program = vllm_program(tmp_path) if server == "vllm" else None
    home, log = Home(tmp_path / "home"), tmp_path / "serve.log"
    loop = adapted(write_loop(tmp_path), program, "shared")
    assert "the process of the champion loads the adapter of a candidate" in ratchet(home, "check", loop)
    ratchet(home, "adopt", loop, write_model(tmp_path), "--by", "ada")
    installation = Installation(home)
    write_traffic(tmp_path)
    token = open_credentials(home, LINE).add("people", [Role.FEEDBACK]).read_text()
    stream = cycle_stream(LINE, 1)
    begun = time.monotonic()

    def passed(what: str) -> None:
        print(f"{time.monotonic() - begun:6.0f} s  {what}")

    def why() -> str:
        return log.read_text()[-3000:]

    def rollout() -> set[str]:
        return {f"{row.kind} {row.key}" for row in installation.ledger.read(rollout_stream(stream))}

    with (
        serving(home, loop, log) as service,
        Users(home, LINE, token, lambda: bool(installation.ledger.read(rollout_stream(stream)))) as users,
    ):
        base = installation.line(LINE).champion
        assert base is not None
        until(lambda: "done weight/0" in rollout(), 900, pause=0.05, why=why)
        passed("the candidate gets its first sessions")
        cycle = installation.cycle(LINE, 1)
        assert cycle is not None
        assert cycle.candidate is not None
        tag = cycle.candidate.tag
        assert loaded(home, base.tag) == {tag}
        assert sorted(path.parent.name for path in (home.serving(LINE) / "servers").glob("*/started.json")) == [base.tag], "one process"
        process = process_of(home, base.tag)
        family = [*process.children(recursive=True), process]
        for one in family:
            one.kill()
        service.kill_and_start()
        passed("the shared process and the service are killed")
        until(lambda: "died 1" in rollout(), 300, pause=0.2, why=why)
        passed("both versions answer again")
        assert loaded(home, base.tag) == {tag}
        until(lambda: (view := installation.cycle(LINE, 1)) is not None and view.ended, 900, pause=0.5, why=why)
        cycle = installation.cycle(LINE, 1)
        assert cycle is not None
        assert cycle.state is State.PROMOTED, cycle.reason
        passed("promoted")
        until(lambda: answer(home, GOLDEN[0]) == "yes", 60)

        refused = command.ratchet("check", str(loop), home=home.root)
        assert f"the champion {tag} is an adapter" in refused.stdout + refused.stderr

        ratchet(home, "rollback", LINE, "--by", "ada", "--why", "a trial")
        until(lambda: answer(home, GOLDEN[0]) == "no", 60, why=why)
        passed("rolled back")
        until(lambda: reconcile(installation.context(loop)) is not None and not loaded(home, base.tag), 60, pause=0.5, why=why)
        passed("the adapter is unloaded")
        assert process_of(home, base.tag).is_running()
        assert len(users.answered) > 3
    rows = installation.ledger.read(rollout_stream(stream))
    (died,) = [row for row in rows if row.kind == "died"]
    assert died.data["since"] < died.data["until"]
    assert rows[-1].data["reason"].count("errors 0/") == 2, "the requests that failed with the process count for neither version"
    ratchet(home, "model", "fetch", f"{LINE}/1", tmp_path / "copy")
    assert json.loads((tmp_path / "copy" / "adapter_config.json").read_bytes())["base_model_name_or_path"] == base.model.files
    ratchet(home, "model", "fetch", f"{LINE}/1", tmp_path / "whole", "--merged")
    assert set(load_file(tmp_path / "whole" / "model.safetensors")) == set(load_file(tmp_path / "copy" / "base" / "model.safetensors"))
    ratchet(home, "verify")
