"""Renders `prefect.yaml`: a deployment `ratchet-request/LINE` per line, for a process work pool on the service's machine."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

import yaml

from ratchet.contracts.loop import Loop

POOL = "ratchet"
ENTRYPOINT = "ratchet.flows.prefect.request_flow.request"
_HEAD = """\
# Deployments that ask the service for a cycle from a process work pool. Create the pool, deploy, and start a worker in the environment in
# which Ratchet is installed:
#   prefect work-pool create --type process {pool}
#   prefect deploy --all
#   prefect worker start --pool {pool}
# The service registers ratchet-retrain/LINE itself, with the schedule of the loop file. Add a schedule here only if that one is paused.
"""


def prefect_yaml(loops: Sequence[Loop], pool: str = POOL) -> str:
    """Return the content of `prefect.yaml` with one deployment per line. `pool` is the name of the process work pool."""
    deployments = [
        {
            "name": loop.line.name,
            "description": f"Asks the service for a cycle of the model line {loop.line.name}, and exits.",
            "tags": ["ratchet-request"],
            "entrypoint": ENTRYPOINT,
            "parameters": {"line": loop.line.name, "when": "any new traces"},
            "work_pool": {"name": pool},
            "schedules": [],
        }
        for loop in loops
    ]
    content = {"name": "ratchet", "prefect-version": version("prefect"), "pull": [], "deployments": deployments}
    return _HEAD.format(pool=pool) + str(yaml.safe_dump(content, sort_keys=False, width=140))
