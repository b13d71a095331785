"""A rollout without ratings decides by mirrored prompts: real lake, real model servers, real scorers and the real judge."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.cycle import Append
from ratchet.contracts.fakes import fake_model
from ratchet.contracts.ids import rollout_stream
from ratchet.contracts.loop import GateSettings, RolloutSettings
from ratchet.contracts.model import model_ref
from ratchet.contracts.rows import RolloutOpened, row_of
from ratchet.contracts.serving import Endpoint, ModelVersion
from ratchet.flows.core.rollouts.mirror import batches, mirrored
from ratchet.flows.core.rollouts.rollout import Hold, SetWeight
from ratchet.flows.engine.rollouts.rollout import tick
from ratchet.gates.evaluation.evaluator import PairedEvaluator
from ratchet.gates.model_client import HttpModelClient
from ratchet.gates.rollout_judge import EvidenceJudge
from ratchet.local.server import EmbeddedServer
from ratchet.materializer.metrics import LakeMetrics
from ratchet.runtime.artifacts import FolderArtifacts
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.materializer.conftest import make_datasets, make_loop, signed
from tests.unit.materializer.records import T0, batch, span, spans
from tests.unit.trainers.conftest import write_model

pytestmark = [pytest.mark.slow]

ROLLOUT = rollout_stream("cycle/sim/0001")
SETTINGS = RolloutSettings(
    steps=(50, 100), margin=0.1, error_margin=0.5, slow_margin=0.5, min_requests=50, min_seconds=0, dark=1e6, maturity=5, mirror=200
)
WORDS = [
    "red",
    "blue",
    "green",
    "house",
    "tree",
    "water",
    "stone",
    "light",
    "dark",
    "road",
    "sea",
    "bird",
    "fish",
    "cloud",
    "rain",
    "wind",
    "fire",
    "gold",
    "iron",
    "salt",
]
CANDIDATE = ModelVersion(line="sim", number=1, tag="v-candidate", model=fake_model("candidate"), cycle="cycle/sim/0001")


class Servers:
    """Embedded servers of the tiny model, one per version tag."""

    def __init__(self, folder: Path) -> None:
        artifacts = FolderArtifacts(folder / "artifacts")
        model = write_model(folder / "model")
        self._model = model_ref(model, artifacts.put_folder(model))
        self._real = EmbeddedServer(folder / "serving", artifacts, "sim", threads=1)
        self.capabilities = self._real.capabilities.model_copy(update={"sharing": False})

    def ensure(self, version: ModelVersion) -> Endpoint:
        return self._real.ensure(version.model_copy(update={"model": self._model}))

    def running(self) -> list[Endpoint]:
        return self._real.running()

    def stop(self, tag: str) -> None:
        self._real.stop(tag)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(tmp_path)
    yield servers
    for endpoint in servers.running():
        servers.stop(endpoint.tag)


def traffic(folder: Path, tags: tuple[str, str]) -> list[dict[str, Any]]:
    """Signed requests of twelve users, half of them answered by each version."""
    asked = [f"Is the {one} near the {other}?" for at, one in enumerate(WORDS) for other in WORDS[at + 1 :]]
    return [
        signed(
            folder,
            span(
                n,
                prompt,
                at=T0 + n * 10**9,
                user__id=f"user-{n % 12}",
                gen_ai__conversation__id=f"session-{n}",
                ratchet__model_version=tags[n // 12 % 2],
                metadata__reference="1",
            ),
        )
        for n, prompt in enumerate(asked, 1)
    ]


def test_a_rollout_without_ratings_advances_by_mirrored_prompts(tmp_path: Path, servers: Servers) -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    sim.router.watch = lambda _route: None
    sim.clock.time = datetime.fromtimestamp(T0 / 1e9, UTC)
    champion = sim.context.line_view().champion
    assert champion is not None
    loop = sim.context.loop.model_copy(update={"rollout": SETTINGS})
    datasets = make_datasets(tmp_path, make_loop(rewards=[{"name": "final_number"}]))
    sim.context = replace(
        sim.context,
        loop=loop,
        datasets=datasets,
        rewards=datasets.rewards,
        server=servers,
        client=HttpModelClient,
        evaluator=PairedEvaluator(sim.context.artifacts, datasets.rewards, GateSettings(max_tokens=4)),
        metrics=LakeMetrics(tmp_path / "lake"),
        judge=EvidenceJudge(SETTINGS),
    )
    opened = RolloutOpened(cycle="cycle/sim/0001", champion=champion, candidate=CANDIDATE, settings=SETTINGS, metrics=(), salt="salt")
    sim.ledger.append([Append(stream=ROLLOUT, after=0, rows=(row_of("opened", opened),))], None, sim.clock.now())
    assert tick(ROLLOUT, sim.context) == SetWeight(0, 50)
    datasets.ingest(batch(spans(*traffic(tmp_path, (champion.tag, CANDIDATE.tag)))))
    stored, artifacts = datasets.cursor(), dict(sim.world.artifacts.content)
    sim.clock.sleep(400)
    decisions = [decision := tick(ROLLOUT, sim.context)]
    while isinstance(decision, Hold):
        sim.clock.sleep(5)
        decisions.append(decision := tick(ROLLOUT, sim.context))
        assert len(decisions) < 20, decision
    view = sim.context.rollout_view(ROLLOUT)
    assert view is not None
    assert decision == SetWeight(1, 100)
    assert "no pairs of two people" in str(decisions[0])
    assert "a loss of 0.1 is excluded" in str(view.judgements[-1].data["judgement"]["reasons"])
    found = mirrored(batches(view.mirrored))
    assert (found.asked, found.failed, len({person for person, _ in found.pairs})) == (len(found.pairs), 0, 12)
    assert datasets.cursor() == stored, "mirrored requests are no traces"
    assert dict(sim.world.artifacts.content) == artifacts, "and their answers are not stored"
    rows = json.dumps([row.data for row in view.mirrored])
    assert not any(word in rows for word in ("Is the", "near", "user-", "session-"))
