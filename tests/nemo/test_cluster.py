"""A job over two Ray nodes, as the head of a gang runs it."""

from __future__ import annotations

import re
import secrets
from typing import Any

from tests.nemo.comparison import assert_close, differences, published_as_sampled, summary
from tests.nemo.runs import Bench, Run
from tests.nemo.two_nodes import two_ray_nodes


def test_a_job_over_two_ray_nodes_trains_as_one_rank(bench: Bench, undisturbed: Run, told: dict[str, Any]) -> None:
    token = bench.ray / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    more = {"GLOO_SOCKET_IFNAME": "lo", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    run = bench.job(nodes=2, gpus=1, steps=6, save_every=3, environment=more)
    with two_ray_nodes(bench.ray, run.spec.environment) as address:
        run.spec.environment["NEMO_STAND_INS_RAY"] = address
        run.done()
    nodes = set(re.findall(r"127\.0\.0\.[23]", (run.bench.run_folder(run.spec) / "i1" / "trainer.log").read_text()))
    found = differences(run.figures(), undisturbed.figures())
    told |= {"nodes": sorted(nodes)} | summary(run.figures()) | found
    assert nodes == {"127.0.0.2", "127.0.0.3"}
    assert_close(found)
    assert published_as_sampled(run, step=6)
