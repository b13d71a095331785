"""A whole cycle on one GPU: the job trains there, a kill included, and the real vLLM serves champion and candidate beside it.

It has run on a CPU only, with the embedded server in place of vLLM. The test needs a GPU and an environment with vLLM, as
requirements/grpo_vllm.lock gives it. `RATCHET_VLLM` names the Python of another one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
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
from ratchet.runtime.jobs.job_protocol import IncarnationFile
from tests.needs import Need, lacks
from tests.toy_line import GOLDEN, LINE, Users, answer, ratchet, serving, write_loop, write_model, write_traffic
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ARGUMENTS = ("--gpu-memory-utilization", "0.15", "--max-model-len", "128", "--enforce-eager")
PROGRAM = """#!/bin/sh
# `vllm serve MODEL …`
export VLLM_NO_USAGE_STATS=1 VLLM_DO_NOT_TRACK=1 VLLM_LOGGING_LEVEL=WARNING
exec {python} -m vllm.entrypoints.cli.main "$@"
"""


def vllm_program(folder: Path) -> Path:
    """Write the program that serves with vLLM on the GPU, and return its path. Skips the test without a GPU or without vLLM."""
    asked = "import torch; raise SystemExit(not torch.cuda.is_available())"
    if subprocess.run([sys.executable, "-c", asked], check=False, capture_output=True).returncode:
        lacks(Need.GPU)
    python = os.environ.get("RATCHET_VLLM", sys.executable)
    if python == sys.executable and importlib.util.find_spec("vllm") is None:
        lacks(Need.VLLM)
    program = folder / "vllm"
    program.write_text(PROGRAM.format(python=python), encoding="utf-8")
    program.chmod(0o755)
    return program


def kill_job(home: Home) -> bool:
    """Kill the first incarnation of the job and all its processes once it has a checkpoint. Return whether it was killed."""
    for step in home.root.glob("**/i1/step_*"):
        supervisor = json.loads((step.parent / IncarnationFile.PROCESS).read_bytes())["pid"]
        with contextlib.suppress(psutil.NoSuchProcess):
            processes = [*psutil.Process(supervisor).children(recursive=True), psutil.Process(supervisor)]
            for process in processes:
                process.kill()
            return True
    return False


def test_a_cycle_trains_and_serves_on_the_gpu(tmp_path: Path) -> None:
    program = vllm_program(tmp_path)
    home, loop, log = Home(tmp_path / "home"), write_loop(tmp_path), tmp_path / "serve.log"
    options = f'kind = "vllm"\n[serving.options]\nexecutable = "{program}"\narguments = {json.dumps(ARGUMENTS)}\n'
    text = loop.read_text().replace("[serving.options]\nthreads = 1\n", f"[serving]\n{options}")
    text = text.replace("\nsteps = 12\n", "\nsteps = 400\n").replace("save_every = 3", "save_every = 40").replace("5e-3", "1e-3")
    loop.write_text(text.replace('methods = ["sft"]', 'methods = ["sft"]\ngpus = 1'))
    ratchet(home, "adopt", loop, write_model(tmp_path), "--by", "ada")
    installation, begun, killed = Installation(home), time.monotonic(), False
    write_traffic(tmp_path)
    token = open_credentials(home, LINE).add("people", [Role.FEEDBACK]).read_text()

    def rolls_out() -> bool:
        return bool(installation.ledger.read(rollout_stream(cycle_stream(LINE, 1))))

    def ended() -> bool:
        nonlocal killed
        killed = killed or kill_job(home)
        view = installation.cycle(LINE, 1)
        return view is not None and view.ended

    with serving(home, loop, log), Users(home, LINE, token, rolls_out) as users:
        until(ended, 600, pause=0.05, why=lambda: log.read_text()[-3000:])
        cycle = installation.cycle(LINE, 1)
        assert cycle is not None
        assert cycle.state is State.PROMOTED, cycle.reason
        until(lambda: answer(home, GOLDEN[0]) == "yes", 60)
        promoted = time.monotonic() - begun
        ratchet(home, "rollback", LINE, "--by", "ada", "--why", "a trial")
        until(lambda: answer(home, GOLDEN[0]) == "no", 300, pause=0.5, why=lambda: log.read_text()[-3000:])
        print(f"promoted after {promoted:.0f} s, the former answers after {time.monotonic() - begun:.0f} s, {len(users.answered)} answers")
    steps = [one for path in home.root.glob("**/a1/i*/events.jsonl") for one in map(json.loads, path.read_text().splitlines())]
    second = [one for one in steps if one["kind"] == "progress" and one["incarnation"] == 2]
    assert killed
    assert second[0]["step"] > 40, "the second incarnation did not resume"
    assert all(one["data"]["gpu_peak_gib"] > 0 for one in second), "the job did not train on the GPU"
