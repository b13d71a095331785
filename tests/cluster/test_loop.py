"""A test of a loop file whose jobs run on a cluster: a cycle from traffic to promotion, trained as a gang of two real pods.

`make test` has a cycle with every part in the cluster (`test_whole.py`) and gangs of two pods (`test_bucket.py`, `test_training.py`).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from ratchet.contracts.data.senders import Role
from ratchet.contracts.steps import State
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.composition.installation import Installation
from ratchet.flows.composition.services import start_receiver
from ratchet.flows.config.home import Home
from ratchet.flows.core.decide import End
from ratchet.flows.engine.choice.training_curves import read_event_logs, training_runs
from ratchet.flows.engine.context import TURN_SECONDS
from ratchet.flows.engine.ingest import ingest
from ratchet.flows.engine.line import adopt, open_cycle
from ratchet.flows.engine.reconcile import reconcile
from ratchet.flows.engine.work import run_to_end
from tests.cluster.bench import REAL
from tests.cluster.loop_files import MACHINE, SECTION
from tests.cluster.rig.cluster import REPO, Rig
from tests.cluster.rig.images import HOST
from tests.command import ratchet
from tests.toy_line import Users, write_loop, write_model, write_traffic

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900)]


def test_cycle_trains_as_a_gang_of_two_pods_and_is_promoted(
    real_rig: Rig, real_namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(real_rig.kubeconfig))
    home, said = Home(tmp_path / "h"), list[str]()
    home.root.mkdir()
    loop = write_loop(tmp_path)
    words = {"namespace": real_namespace, "image": HOST, "python": sys.executable, "home": home.root}
    text = loop.read_text().replace("[training]\n", "[training]\nnodes = 2\n", 1)
    loop.write_text(text + SECTION.format(**words))
    (tmp_path / "machine.toml").write_text(MACHINE.format(mounts=list(REAL.mounts), repo=REPO))
    installation = Installation(home, lambda what, _done, _total: said.append(what))
    context = installation.context(loop)
    try:
        adopt(context, write_model(tmp_path), "ada")
        start_receiver(context.loop, home)
        reconcile(context, TURN_SECONDS)
        write_traffic(tmp_path)
        ingest(context)
        token = open_credentials(home, context.line).add("people", [Role.FEEDBACK]).read_text()
        cycle = open_cycle(context, "a cycle on a cluster")
        frozen, until = installation.cycle_context(context.cycle_view(cycle)), time.monotonic() + 600
        with Users(home, context.line, token, lambda: context.cycle_view(cycle).state is State.ROLLING):
            while not isinstance(run_to_end(frozen, context.cycle_view(cycle), 2.0, poll=0.3), End):
                assert time.monotonic() < until, said
        view = context.cycle_view(cycle)
        assert view.state is State.PROMOTED, "\n".join(
            [str(view.reason), *said, real_rig.kubectl("get", "pods,vcjob,events", "-n", real_namespace)]
        )
        assert [(i.attempt, i.number, str(i.outcome)) for i in view.incarnations] == [(1, 1, "done")]
        assert sum(len(run.steps) for run in training_runs(read_event_logs(view, context.artifacts))) >= 12
        meter = context.executor.meter(view.incarnations[0].job)  # type: ignore[attr-defined]
        assert meter.started is not None
        assert meter.nodes > 0
        assert real_rig.pods(real_namespace) == [], "no pod of the gang may be left"
    finally:
        stopped = ratchet("serve", "--stop", loop, home=home.root)
    assert stopped.returncode == 0, stopped.stderr
