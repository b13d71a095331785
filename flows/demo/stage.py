"""The service of the demo: `ratchet serve` with Prefect, and a simulated approver.

The approver acts like the Prefect UI: it resumes the suspended run with the form's fields over Prefect's REST API.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from typing import Any

import httpx

from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.flows.demo.play import MARKER, Say
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.line import approvals
from ratchet.flows.prefect import server

_TIMEOUT = 90.0
LOOP = "demo.toml"


class Stage:
    """Runs `ratchet serve` for the demo's loop file in a separate process. `say` receives a sentence for each answer of the approver."""

    def __init__(self, home: Home, say: Say) -> None:
        self._home = home
        self._say = say
        self._service: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Start the service and return without waiting until it is ready."""
        environment = {**os.environ, variables.HOME: str(self._home.root)}
        with (self._home.root / "serve.log").open("ab") as log:
            command = [sys.executable, "-m", "ratchet.flows.cli.main", "serve", str(self._home.root / LOOP)]
            self._service = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def close(self) -> None:
        """Stop the service. The Prefect server, the model servers and the router keep running for inspection."""
        if self._service is not None:
            self._service.terminate()
            self._service.wait(60)

    @property
    def url(self) -> str:
        """URL of the Prefect UI, or `not running`."""
        return (server.known_url(self._home) or "not running").removesuffix("/api")

    def approve(self, context: LineContext, cycle: str) -> None:
        """Approve the pending request of the cycle through Prefect, as approver "ada". Does nothing if no request is pending.

        Raises Permanent if Prefect rejects the answer, or if the form or the answer does not appear within 90 s.
        """
        waiting = [view for view in approvals(context.ledger, context.line) if view.awaiting and view.cycle == cycle]
        if not waiting:
            return
        request = waiting[0].id
        api = self._wait("the Prefect server", lambda: server.known_url(self._home))
        prefect = httpx.Client(base_url=api, headers=server.authorization(self._home), timeout=30, trust_env=False)
        run = self._wait(f"the form of {request}", lambda: _suspended(prefect, cycle.removeprefix("cycle/")))
        answer = {"run_input": {"decision": "approve", "approver": "ada", "note": "the gate's figures look right to me"}}
        reply = prefect.post(f"flow_runs/{run['id']}/resume", json=answer)
        for _ in range(10):  # Prefect answers 503 while its SQLite database is busy
            if reply.status_code != 503:
                break
            time.sleep(1.0)
            reply = prefect.post(f"flow_runs/{run['id']}/resume", json=answer)
        if reply.status_code != 201:
            raise Permanent(f"Prefect rejected the answer to {request}: {reply.text[:300]}")
        self._say("approved by the simulated operator ada, with the form in the Prefect UI")
        self._wait(f"the answer to {request}", lambda: context.ledger.read(request)[1:] or None)

    def _wait(self, what: str, condition: Any) -> Any:
        until = time.monotonic() + _TIMEOUT
        while time.monotonic() < until:
            if self._service is not None and self._service.poll() is not None:
                raise Permanent(f"`ratchet serve` ended with exit code {self._service.returncode}; see {self._home.root / 'serve.log'}")
            found = condition()
            if found:
                return found
            time.sleep(0.3)
        raise Permanent(f"{what} did not appear within {_TIMEOUT:g} s; see {self._home.root / 'serve.log'}")


def _suspended(prefect: httpx.Client, name: str) -> dict[str, Any] | None:
    """Return the run of a cycle if it is suspended and its form is stored, else None. `name` is the run's name."""
    try:
        reply = prefect.post("flow_runs/filter", json={"flow_runs": {"name": {"any_": [name]}}})
    except httpx.HTTPError:
        return None
    for run in reply.json() if reply.status_code == 200 else []:
        if run["state"]["type"] == "PAUSED":
            keys = (run["state"].get("state_details") or {}).get("run_input_keyset") or {}
            form = prefect.get(f"flow_runs/{run['id']}/input/{keys.get('schema', '-')}")
            return run if form.status_code == 200 else None
    return None


def stop(home: Home) -> bool:
    """Stop the processes of an earlier demo in this folder. Returns False if the folder is missing or empty.

    Raises ConfigError if the folder was not created by the demo, and Permanent if the processes cannot be stopped.
    """
    if not home.root.exists() or not any(home.root.iterdir()):
        return False
    if not (home.root / MARKER).exists():
        raise ConfigError(f"{home.root} is not empty and was not created by the demo (no file {MARKER}); choose another folder with --home")
    loop = home.root / LOOP
    if loop.exists():
        environment = {**os.environ, variables.HOME: str(home.root)}
        command = [sys.executable, "-m", "ratchet.flows.cli.main", "serve", str(loop), "--stop"]
        ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False, capture_output=True)
        if ended.returncode != 0:
            output = (ended.stderr or ended.stdout).decode(errors="replace").strip()[-300:]
            raise Permanent(f"cannot stop the processes of the demo in {home.root}: {output or f'exit code {ended.returncode}'}")
    return True


def clear_home(home: Home) -> None:
    """Stop the processes of an earlier demo in this folder and delete the folder. If stopping fails, the folder is kept."""
    if stop(home):
        shutil.rmtree(home.root)
