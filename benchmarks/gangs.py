"""The gang benchmark: start time, GPUs held in vain by competing gangs, recovery time, and cost where an autoscaler launches machines.

It runs on the test cluster: a real API server, Volcano, kube-scheduler and Karpenter, and simulated nodes with 8 GPUs each. So the figures
do not include the boot time of real machines or the time to pull images.

Baselines: the same pods as plain batch/v1 Jobs under kube-scheduler; Volcano Jobs, all submitted at once, under Volcano's default
configuration; and Ratchet's executor with an inactive guardian.

`python benchmarks/gangs.py [--small] [--json] [--part NAME]`; the parts are in gang_*.py.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gang_capacity import capacity
from benchmarks.gang_contest import Contest
from benchmarks.gang_recovery import LIMIT, recovery
from benchmarks.gang_sides import Plain, Ratchet, Volcano, plain_job, stock_scheduler
from ratchet.contracts.ids import digest, digest_file
from tests.cluster.bench import Bench
from tests.cluster.interruptions import WANTED
from tests.cluster.rig import build
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import Rig

ROOT = Path(__file__).resolve().parents[1]
SIZES = (4, 4, 4, 4, 4, 8, 8, 8, 8, 8, 12, 12, 12, 12, 16, 16, 16, 24, 24, 32)
"""The number of nodes of each competing gang, 236 in total."""
PARTS = ("start_after_third_node", "contests", "recovery", "capacity")


def code_digest() -> str:
    """Return the digest of the measured code, of the test cluster's code and of this benchmark."""
    files = [path for room in ("k8s", "contracts", "tests/cluster/rig") for path in sorted((ROOT / room).rglob("*.py"))]
    files += [ROOT / "tests/cluster" / f"{name}.py" for name in ("bench", "gangs", "watcher")]
    files += sorted((ROOT / "benchmarks").glob("gang*.py"))
    return digest([[path.relative_to(ROOT).as_posix(), digest_file(path)] for path in files])


def start(rig: Rig, folder: Path, plain: bool) -> float:
    """Return the seconds from the request for the third node until all three pods run."""
    with rig.namespace() as namespace:
        rig.fake_nodes(WANTED - 1)
        if plain:
            rig.api.call("POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", plain_job("gang", WANTED))
        else:
            bench = Bench(rig, namespace, folder)
            bench.executor.submit(bench.spec(nodes=WANTED), 1)
        until(lambda: len(rig.pods(namespace)) == WANTED, 30, "the pods")
        time.sleep(2)  # long enough for either scheduler to have tried once
        began = time.monotonic()
        rig.fake_nodes(1)
        until(lambda: len(rig.pods(namespace, "Running")) == WANTED, 60, "the gang")
        return time.monotonic() - began


def starts(rig: Rig, folder: Path, repeats: int) -> dict[str, Any]:
    """Measure the start time of one gang `repeats` times, with Ratchet and as plain Jobs."""
    found: dict[str, Any] = {"pods": WANTED, "gpus_per_pod": 8, "repeats": repeats}
    for name, plain in (("ratchet", False), ("plain_jobs", True)):
        seconds = [start(rig, folder / f"{name}-{number}", plain) for number in range(repeats)]
        found[name] = {"median_s": round(median(seconds), 2), "max_s": round(max(seconds), 2)}
    return found


def contest(rig: Rig, folder: Path, nodes: int, sizes: tuple[int, ...], hold: float, limit: float, seed: int) -> dict[str, Any]:
    """Measure the contest between gangs for all three submitters; each gang runs for `hold` seconds."""
    found: dict[str, Any] = {"nodes": nodes, "gangs": len(sizes), "wanted_nodes": sum(sizes), "each_runs_s": hold, "limit_s": limit}
    for name, side in (("ratchet", Ratchet), ("volcano_alone", Volcano), ("plain_jobs", Plain)):
        with rig.namespace() as namespace, stock_scheduler(rig) if side is Volcano else nullcontext():
            rig.fake_nodes(nodes)
            found[name] = Contest(rig, namespace, side, sizes, seed).run(folder / name, hold, limit)
    return found


def measured(rig: Rig, folder: Path, part: str, small: bool, say: Callable[[str], None]) -> Any:
    """Run one of PARTS and return its figures; `say` receives progress messages."""
    if part == "start_after_third_node":
        say("start of one gang")
        return starts(rig, folder / "start", 1 if small else 5)
    if part == "contests":
        sizes, hold, limit = ((3, 3, 3, 6), 3.0, 60.0) if small else (SIZES, 20.0, 180.0)
        found = []
        for seed in (1,) if small else (1, 2):
            say(f"{len(sizes)} gangs compete, order {seed}")
            found.append(contest(rig, folder / f"contest-{seed}", 8 if small else 128, sizes, hold, limit, seed))
        return found
    if part == "capacity":
        rig.add("karpenter")
        return capacity(rig, folder / "capacity", small, say)
    recovered: dict[str, Any] = {"half_alive_limit_s": LIMIT, "node_grace_s": 12}
    for silent in (False,) if small else (False, True):
        for guarded in (True, False):
            what = f"{'silent_node' if silent else 'evicted_pod'}{'' if guarded else '_without_guardian'}"
            say(f"recovery: {what}")
            recovered[what] = recovery(rig, folder / what, silent, guarded, 90)
    return recovered


@click.command()
@click.option("--small", is_flag=True, help="Use a few nodes, finish in under a minute, and do not keep the results.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as one line of JSON.")
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="Measure only this part (repeatable) and keep the rest.")
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "benchmarks" / "results" / "gangs.json")
def main(small: bool, as_json: bool, parts: tuple[str, ...], out: Path) -> None:
    """Start a test cluster and measure on it; takes about a quarter of an hour."""
    build.build([*build.PLANE, *build.VOLCANO, *build.KARPENTER, "kube-scheduler"], lambda words: click.echo(words, err=True))
    began, code = time.monotonic(), code_digest()[:12]

    def say(words: str) -> None:
        click.echo(f"{time.monotonic() - began:5.0f} s  {words}", err=True)

    with tempfile.TemporaryDirectory(prefix="rg-") as folder:
        rig = Rig(Path(folder) / "g", say)
        rig.up(kube_scheduler=True, guarded=True)
        try:
            found = {part: measured(rig, Path(folder) / "runs", part, small, say) for part in parts or PARTS}
        finally:
            rig.down()
    run = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "code": code, "cores": os.cpu_count()}
    said: dict[str, Any] = {part: {**run, "measured": of} for part, of in found.items()}
    if not small:
        said = (json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}) | said
        out.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    click.echo(json.dumps(said, indent=None if as_json else 2))


if __name__ == "__main__":
    main()
