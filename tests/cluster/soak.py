"""The long interruption test, `python -m tests.cluster.soak`: 50 interruptions by default, in about twelve minutes.

The test suite itself runs five interruptions, one of each kind. A fifth of the interruptions remove machines of a static pool. The results
go to benchmarks/results/interruptions.json. The first failed expectation ends the run with its seed, which reproduces it.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import click

from ratchet.contracts.ids import digest, digest_file
from tests.cluster.bench import BOUGHT, PRETENDING, Bench
from tests.cluster.interruptions import CLAIM, DELETED, EVICTED, NODE, SILENT, WANTED, Interruption, Life, dealt
from tests.cluster.rig import build
from tests.cluster.rig.cluster import Rig
from tests.cluster.watcher import Watcher

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 12.0


def code_digest() -> str:
    """Return the digest of the product code and test code that run here."""
    files = [path for room in ("contracts", "runtime", "k8s", "tests/cluster") for path in sorted((ROOT / room).rglob("*.py"))]
    return digest([[path.relative_to(ROOT).as_posix(), digest_file(path)] for path in files])


def suffered(folder: Path, kinds: Sequence[str], seed: int, karpenter: bool) -> tuple[list[Interruption], dict[str, Any]]:
    """Interrupt one gang on a new test cluster; returns the interruptions and the final usage of the meter."""
    rig = Rig(folder / "g")
    rig.up(karpenter=karpenter, guarded=True)
    try:
        with rig.namespace() as namespace, Watcher(rig, namespace, WANTED) as watcher:
            if karpenter:
                rig.apply({"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}})
            else:
                rig.fake_nodes(WANTED + 1)
            pool = {"kind": "static", "max_nodes": WANTED} if karpenter else {"kind": "none"}
            profile = BOUGHT if karpenter else PRETENDING
            bench = Bench(rig, namespace, folder / "runs", profile, half_alive=LIMIT, failure_margin=len(kinds), pool=pool)
            life = Life(bench, watcher, seed)
            life.begin()
            for kind in kinds:
                click.echo(f"{len(life.past) + 1} of {len(kinds)}: {life.suffer(kind)}", err=True)
            meter = bench.executor.meter(life.spec.name).usage.model_dump(mode="json")
            return life.past, {name: round(value, 2) for name, value in meter.items()}
    finally:
        rig.down()


def told(past: Sequence[Interruption]) -> dict[str, Any]:
    """Summarize the interruptions by kind."""
    found = {}
    for kind in sorted({one.kind for one in past}):
        of = [one for one in past if one.kind == kind]
        found[kind] = {
            "times": len(of),
            "whole_after_s": {"median": round(median(one.whole_after_s for one in of), 1), "max": max(one.whole_after_s for one in of)},
            "half_alive_s_max": max(one.half_alive_s for one in of),
        }
    return found


@click.command()
@click.option("--count", default=50, help="Number of interruptions.")
@click.option("--seed", default=11, help="Seed of the interruptions.")
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "benchmarks" / "results" / "interruptions.json")
def main(count: int, seed: int, out: Path) -> None:
    """Interrupt a gang COUNT times and write the results."""
    build.build([*build.PLANE, *build.VOLCANO, *build.KARPENTER], lambda words: click.echo(words, err=True))
    claims, began, code = max(1, count // 5), time.monotonic(), code_digest()[:12]
    past: list[Interruption] = []
    meters = {}
    for karpenter, kinds in ((False, dealt((EVICTED, DELETED, NODE, SILENT), count - claims, seed)), (True, [CLAIM] * claims)):
        with tempfile.TemporaryDirectory(prefix="rs-") as folder:
            try:
                found, meter = suffered(Path(folder), kinds, seed, karpenter)
            except AssertionError as error:
                raise SystemExit(f"seed {seed}: {error}") from error
        past += found
        meters["static pool" if karpenter else "fixed nodes"] = meter
    said = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "code": code,
        "cores": os.cpu_count(),
        "seed": seed,
        "interruptions": len(past),
        "seconds": round(time.monotonic() - began),
        "pods": WANTED,
        "half_alive_limit_s": LIMIT,
        "broken": 0,
        "by_kind": told(past),
        "meters": meters,
    }
    out.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    click.echo(json.dumps(said))


if __name__ == "__main__":
    main()
