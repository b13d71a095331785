"""Tests of a run on two CPU processes (DDP over gloo).

The training is the same as on one process, only rank 0 reports events, and both processes stop together.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.exit_codes import DONE, Outcome
from ratchet.contracts.jobs.training import JobSpec, JobState, Method, TrainingPlan
from ratchet.trainers.job import parallel
from tests.unit.trainers.conftest import Workshop
from tests.unit.trainers.runs import checkpoint_of, finish, kinds, pin_newest
from tests.warm import Warm

ROOT = Path(__file__).resolve().parents[4]
STEPS = 12
ENDS = ("exporting", "published", "stopped")
"""The last events of a finished run."""


def on_two(spec: JobSpec) -> JobSpec:
    """Return the job with two processes."""
    return spec.model_copy(update={"environment": {**spec.environment, "RATCHET_PROCESSES": "2"}})


def losses(workshop: Any, spec: JobSpec) -> list[float]:
    """Return the losses of all steps."""
    return [event.data["loss"] for event in workshop.executor.events(spec.name) if event.kind == "progress"]


def tensors(workshop: Any, checkpoint: Any, folder: Path) -> dict[str, Any]:
    """Download a checkpoint and return its tensors by name."""
    from safetensors.torch import load_file

    return dict(load_file(workshop.artifacts.fetch(checkpoint.files, folder) / "model.safetensors"))


class Pair(NamedTuple):
    """One plan that was trained by one process without interruption, and by two processes that were preempted and resumed."""

    workshop: Workshop
    plan: TrainingPlan
    alone: JobSpec
    both: JobSpec
    written: frozenset[str]
    """Names of the files of the checkpoint from which the two processes resumed."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, warm: Warm) -> Pair:
    """Train one plan with one process, and with two that stop at step 3 and resume."""
    workshop = Workshop(tmp_path_factory.mktemp("pair"), tiny_model, warm)
    plan = workshop.plan(Method.DPO, steps=STEPS, batch=7, micro_batch=1)
    alone, both = workshop.spec(plan, attempt=1), on_two(workshop.spec(plan, attempt=2))
    finish(workshop, alone)
    workshop.executor.submit(both, 1)
    workshop.preempt(both, step=3)
    resume = pin_newest(workshop, both)
    written = frozenset(path.name for path in (workshop.run_folder(both).parent / resume.path).iterdir())
    finish(workshop, both, 2)
    return Pair(workshop, plan, alone, both, written)


@pytest.mark.slow
def test_two_processes_that_stop_together_and_resume_train_the_same_weights_as_one(pair: Pair, tmp_path: Path) -> None:
    import torch

    assert {"rng_state_0.pth", "rng_state_1.pth"} <= pair.written, "the checkpoint must be sealed after every rank has written its file"
    assert losses(pair.workshop, pair.both) == pytest.approx(losses(pair.workshop, pair.alone), rel=1e-4)
    events = pair.workshop.executor.events(pair.both.name)
    steps = [event.step for event in events if event.kind == "progress"]
    assert steps == list(range(1, STEPS + 1)), "only one rank may report events"
    assert [kind for kind in kinds(events) if kind in ENDS] == ["stopped", *ENDS]
    one, two = (checkpoint_of(pair.workshop.artifacts, spec) for spec in (pair.alone, pair.both))
    expected = tensors(pair.workshop, one, tmp_path / "one")
    for name, value in tensors(pair.workshop, two, tmp_path / "two").items():
        torch.testing.assert_close(value, expected[name], rtol=1e-2, atol=2e-4)


@pytest.mark.slow
@pytest.mark.soak
def test_two_processes_train_sft_as_one_does(warm_workshop: Any, tmp_path: Path) -> None:
    """One process accumulates two micro-batches of four rows; of two processes, each takes one micro-batch."""
    import torch

    workshop = warm_workshop
    plan = workshop.plan(Method.SFT, steps=8)
    alone, both = workshop.spec(plan, attempt=1), on_two(workshop.spec(plan, attempt=2))
    one, two = finish(workshop, alone), finish(workshop, both)
    assert losses(workshop, both) == pytest.approx(losses(workshop, alone), rel=1e-4)
    assert kinds(workshop.executor.events(both.name)) == kinds(workshop.executor.events(alone.name))
    expected = tensors(workshop, one, tmp_path / "one")
    for name, value in tensors(workshop, two, tmp_path / "two").items():
        torch.testing.assert_close(value, expected[name], rtol=1e-2, atol=2e-4)


@pytest.mark.slow
def test_the_end_of_one_rank_ends_the_attempt(warm_workshop: Any) -> None:
    workshop = warm_workshop
    spec = on_two(workshop.spec(workshop.plan(Method.DPO, steps=100_000, save_every=100_000)))
    workshop.executor.submit(spec, 1)
    workshop.wait(spec, lambda status: status.step >= 1 or status.state == JobState.ENDED)
    wrapper = psutil.Process(json.loads((workshop.run_folder(spec) / "i1" / "process.json").read_text())["pid"])
    ranks = {child.environ().get("RANK"): child for child in wrapper.children(recursive=True)}
    ranks["1"].kill()
    assert workshop.wait(spec).outcome == Outcome.FAILED, workshop.log(spec)
    assert not ranks["0"].is_running(), "the other rank must not continue alone"


@pytest.mark.slow
@pytest.mark.soak
def test_two_nodes_are_one_run(workshop: Any, pair: Pair) -> None:
    """Both nodes are on this machine, and each has a separate supervisor. `tests/cluster/test_training.py` trains on two pods."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"RATCHET_NODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    spec = workshop.spec(pair.plan)
    spec = spec.model_copy(update={"environment": {**spec.environment, **meeting, "RATCHET_NODE": "0"}})
    workshop.executor.submit(spec, 1)
    second = {**os.environ, **spec.environment, "RATCHET_NODE": "1", "RATCHET_INCARNATION": "1", "PYTHONPATH": str(ROOT)}
    second |= {"RATCHET_ARTIFACTS": str(workshop.run_folder(spec) / "drop")}
    follower = subprocess.Popen([sys.executable, "-m", "ratchet.trainers.job.supervisor"], cwd=workshop.run_folder(spec), env=second)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.DONE, (status, workshop.log(spec))
    assert follower.wait(60) == DONE
    assert losses(workshop, spec) == pytest.approx(losses(pair.workshop, pair.alone), rel=1e-4)
    expected = ["started", "layout", *["progress", "saving", "checkpoint"] * STEPS, *ENDS]
    assert kinds(workshop.executor.events(spec.name)) == expected, "only one rank may report events"


def test_one_process_needs_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RATCHET_NODES", raising=False)
    monkeypatch.setenv("RATCHET_PROCESSES", "1")
    assert parallel.launch_command("some.module", 30) == [sys.executable, "-m", "some.module"]


def test_a_single_node_uses_a_local_rendezvous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_NODES", "1")
    monkeypatch.setenv("RATCHET_PROCESSES", "4")
    argv = parallel.launch_command("some.module", 118.0)
    assert argv[3:] == [
        "--nproc-per-node", "4", "--max-restarts", "0", "--shutdown-timeout", "118",
        "--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", "-m", "some.module",
    ]  # fmt: skip


def test_several_nodes_take_the_rendezvous_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"RATCHET_NODES": "2", "RATCHET_PROCESSES": "8", "RATCHET_NODE": "1", "MASTER_ADDR": "job-0", "MASTER_PORT": "29500"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    argv = parallel.launch_command("some.module", 30)
    assert argv[argv.index("--nnodes") :][:8] == [
        "--nnodes", "2", "--node-rank", "1", "--master-addr", "job-0", "--master-port", "29500",
    ]  # fmt: skip
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(Permanent, match="MASTER_PORT"):
        parallel.launch_command("some.module", 30)


@pytest.mark.slow
def test_the_sharded_layers_are_those_of_the_model(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parallel.layers(tiny_model) == ["LlamaDecoderLayer"]
    assert parallel.sharding(tiny_model, gpus=8) == {}, "a single process shards nothing"
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert parallel.sharding(tiny_model, gpus=0) == {}, "on CPUs every process holds the whole model"
    assert parallel.sharding(tiny_model, gpus=8)["fsdp_config"]["version"] == 2


@pytest.fixture(scope="module")
def sharded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the output of `sharded_run.py`.

    For each adapter and mode it contains a run of three steps, and the same run resumed after its first step.
    """
    with pytest.MonkeyPatch.context() as two:
        two.setenv("RATCHET_PROCESSES", "2")
        two.setenv("OMP_NUM_THREADS", "1")
        script = [*parallel.launch_command("tests.unit.trainers.sharded_run", 30), str(tiny_model), str(tmp_path_factory.mktemp("sharded"))]
        done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    (line,) = [line for line in done.stdout.splitlines() if "RESULT" in line] or [pytest.fail(done.stderr[-3000:])]
    return dict(json.loads(line.split("RESULT ", 1)[1]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all weights", "adapter", "sft"])
def test_a_sharded_run_has_the_same_results(sharded: dict[str, Any], kind: str) -> None:
    expected, _ = sharded[kind]["whole"]
    found, resumed = sharded[kind]["sharded"]
    assert (expected["parameters"], found["parameters"]) == ("Parameter", "DTensor"), "only the second run may be sharded"
    for figure in ("losses", "norms"):
        assert found[figure] == pytest.approx(expected[figure], rel=1e-4)
        assert resumed[figure] == found[figure]
    assert found["published"] == pytest.approx(expected["published"], rel=1e-4)
    assert resumed["published"] == found["published"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all weights", "adapter", "sft"])
def test_one_process_reads_the_weights_of_a_sharded_run_once(sharded: dict[str, Any], kind: str, tiny_model: Path) -> None:
    """With one copy per process and one of the reference, eight processes would hold sixteen copies of the model in memory."""
    from safetensors.torch import load_file

    size = sum(value.numel() * value.element_size() for value in load_file(tiny_model / "model.safetensors").values())
    for run in sharded[kind]["sharded"]:
        assert run["loads"] == [[1, size], [0, 0]], "only rank 0 may read the weights, and only once"
