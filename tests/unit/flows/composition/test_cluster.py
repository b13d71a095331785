"""Tests of jobs that a cluster can never run, and of the guardian of gangs: it continues after errors, and reports each once."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Event

import pytest

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.loop import Loop
from ratchet.flows.composition import cluster
from ratchet.flows.composition.extensions import open_trainers
from ratchet.flows.composition.samples import samples
from ratchet.flows.config.home import Home

LOOP = Loop.model_validate(
    {
        "line": {"name": "t", "served_model": "t"},
        "sources": [{"name": "in", "kind": "receiver"}],
        "rewards": [{"name": "exact_match"}],
        "cluster": {"image": "i", "volume": {"mount": "/fsx", "claim": "shared"}},
    }
)


class Watched:
    """An executor whose `guard` returns or raises the given results in turn. It sets `stop` with the last one."""

    def __init__(self, stop: Event, *results: list[str] | Exception) -> None:
        self.stop, self.results = stop, list(results)

    def guard(self) -> list[str]:
        result = self.results.pop(0)
        if not self.results:
            self.stop.set()
        if isinstance(result, Exception):
            raise result
        return result


def test_guardian_continues_after_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stop = Event()
    away, defect = Retryable("the API server does not answer"), ValueError("unexpected value")
    watched = Watched(stop, away, away, ["restarted a"], away, defect, defect, [], ["restarted b"])
    monkeypatch.setattr(cluster, "open_cluster", lambda *_: watched)
    reports = list(cluster.guard_cluster(LOOP, tmp_path, Home(tmp_path), 0.0, once=False, stop=stop))
    assert reports == [str(away), "restarted a", str(away), "the guardian failed: ValueError: unexpected value", "restarted b"]


def test_single_check_raises_its_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster, "open_cluster", lambda *_: Watched(Event(), Retryable("unavailable")))
    with pytest.raises(Retryable, match="unavailable"):
        list(cluster.guard_cluster(LOOP, tmp_path, Home(tmp_path), 0.0, once=True))


@pytest.mark.parametrize(
    ("training", "cluster_settings", "said"),
    [
        ({"gpus": 8}, {}, None),
        ({"gpus": 16}, {}, "training.gpus = 16, but a node of profile 'aws-p5en-efa' has 8"),
        ({"gpus": 8, "nodes": 9}, {}, "a gang of 9 nodes is more than cluster.pool.max_nodes = 4; raise it"),
        ({"gpus": 8, "methods": ["grpo"], "grpo_on": "nemo-rl"}, {}, "needs cluster.nemo_image: NeMo RL's image"),
        ({"gpus": 8}, {"secrets": {"RATCHET_X": "name/key"}}, "would overwrite the job's own variables"),
    ],
)
def test_a_job_that_the_cluster_can_never_run_is_refused(
    training: dict[str, object], cluster_settings: dict[str, object], said: str | None, tmp_path: Path
) -> None:
    content = LOOP.model_dump(mode="json", exclude_unset=True)
    content["cluster"] |= {"profile": "aws-p5en-efa", "pool": {"kind": "static", "max_nodes": 4}, **cluster_settings}
    loop = Loop.model_validate({**content, "training": {"methods": ["sft"], "sft": {"batch": 144}, **training}})
    ((_, job, _),) = samples(loop, open_trainers(loop))
    assert job is not None
    if said is None:
        cluster.refuse_impossible_job(job, loop, tmp_path, Home(tmp_path))
    else:
        with pytest.raises(ConfigError, match=re.escape(said)):
            cluster.refuse_impossible_job(job, loop, tmp_path, Home(tmp_path))
    cluster.refuse_impossible_job(job, loop.model_copy(update={"cluster": None}), tmp_path, Home(tmp_path))
