"""Tests of a gang under repeated interruptions of every kind that occurs in a cloud.

After each interruption the gang is whole again at the accepted step, no restart is counted twice, and no object is left behind.
RATCHET_INTERRUPTIONS sets the number of interruptions and RATCHET_SEED their seed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.bench import BOUGHT, Bench
from tests.cluster.interruptions import CLAIM, DELETED, EVICTED, NODE, SILENT, WANTED, Life, dealt
from tests.cluster.rig.cluster import Rig
from tests.cluster.watcher import Watcher

COUNT = int(os.environ.get("RATCHET_INTERRUPTIONS", "5"))
SEED = int(os.environ.get("RATCHET_SEED", "7"))
CLAIMS = max(1, COUNT // 5)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + 60 * COUNT)]


def test_a_gang_survives_what_befalls_its_pods_and_nodes(rig: Rig, namespace: str, tmp_path: Path) -> None:
    bench = Bench(rig, namespace, tmp_path, half_alive=20, failure_margin=COUNT)
    rig.fake_nodes(WANTED + 1)
    live(bench, dealt((EVICTED, DELETED, NODE, SILENT), COUNT - CLAIMS, SEED))


def test_a_silent_node_counts_once_also_where_the_cluster_moves_first(rig: Rig, namespace: str, tmp_path: Path) -> None:
    """The cluster deletes the silent pod before the limit; Volcano then removes the other pods and waits for it without end."""
    bench = Bench(rig, namespace, tmp_path, half_alive=30)
    rig.fake_nodes(WANTED + 1)
    live(bench, [SILENT])


def test_a_gang_of_a_static_pool_survives_the_loss_of_its_machines(karpenter_rig: Rig, karpenter_namespace: str, tmp_path: Path) -> None:
    karpenter_rig.apply({"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}})
    pool = {"kind": "static", "max_nodes": WANTED}
    bench = Bench(karpenter_rig, karpenter_namespace, tmp_path, BOUGHT, half_alive=20, failure_margin=COUNT, pool=pool)
    live(bench, [CLAIM] * CLAIMS)


def live(bench: Bench, kinds: list[str]) -> None:
    """Interrupt one gang in these ways, one after the other, and check the number of restarts."""
    with Watcher(bench.rig, bench.namespace, WANTED) as watcher:
        life = Life(bench, watcher, SEED)
        life.begin()
        for kind in kinds:
            print(life.suffer(kind), *bench.reports)
            bench.reports.clear()
        assert [one.kind for one in life.past] == kinds
        assert bench.executor.meter(life.spec.name).preemptions == len(kinds) == bench.gang()["status"]["retryCount"]
