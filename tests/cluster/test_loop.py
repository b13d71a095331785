"""A test of a loop file whose jobs run on a cluster: a demo cycle from traffic to promotion, trained as a gang of two real pods."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from contracts.cycle import Answer, Identity, State
from flows.config.home import Home
from flows.demo.play import Demo
from flows.engine.context import LineContext
from flows.engine.line import answer, approvals
from flows.engine.training_curves import read_event_logs, training_runs
from tests.cluster.bench import REAL
from tests.cluster.loop_files import MACHINE, SECTION
from tests.cluster.rig.cluster import REPO, Rig
from tests.cluster.rig.images import HOST

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def approve(context: LineContext, cycle: str) -> None:
    """Approve all open requests of the cycle."""
    for request in approvals(context.ledger, context.line):
        if request.awaiting and request.cycle == cycle:
            yes = Answer(approve=True, actor="ada", identity=Identity.CLAIMED, via="test", note="fine")
            answer(context.ledger, request, yes, context.clock.now())


def test_the_demo_s_honest_cycle_trains_on_the_cluster_and_is_promoted(
    real_rig: Rig, real_namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(real_rig.kubeconfig))
    home = Home(tmp_path / "h")
    said: list[str] = []
    demo = Demo(home, said.append, approve)
    try:
        loop = demo.prepare()
        words = {"namespace": real_namespace, "image": HOST, "python": sys.executable, "home": home.root}
        text = loop.read_text().replace("[training]\n", "[training]\nnodes = 2\n", 1)
        loop.write_text(text + SECTION.format(**words))
        (home.root / "machine.toml").write_text(MACHINE.format(mounts=list(REAL.mounts), repo=REPO))
        installation, context, crowd = demo.open_installation(loop, lambda: None)
        view = demo.cycle(installation, context, crowd, "an honest cycle on a cluster")
        assert view.state is State.PROMOTED, "\n".join([*said, real_rig.kubectl("get", "pods,vcjob,events", "-n", real_namespace)])
        assert [(i.attempt, i.number, str(i.outcome)) for i in view.incarnations] == [(1, 1, "done")]
        assert sum(len(run.steps) for run in training_runs(read_event_logs(view, context.artifacts))) >= 60
        meter = context.executor.meter(view.incarnations[0].job)  # type: ignore[attr-defined]
        assert meter.started is not None
        assert meter.nodes > 0
        assert real_rig.pods(real_namespace) == [], "no pod of the gang may be left"
    finally:
        environment = {**os.environ, "RATCHET_HOME": str(home.root)}
        with suppress(subprocess.TimeoutExpired):
            command = [sys.executable, "-m", "flows.cli.main", "serve", str(home.root / "demo.toml"), "--stop"]
            subprocess.run(command, env=environment, cwd=REPO, capture_output=True, check=False, timeout=120)
