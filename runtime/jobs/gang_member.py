"""Identity of a gang's pod, from the variables that k8s/manifests/gang_manifest.py and Volcano set, and content of its heartbeats."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from ratchet.runtime.jobs.job_protocol import BACKEND, FIRST_INCARNATION, RESTARTS, TASK, TASK_INDEX, PodTask, TrainerBackend


def identity(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return (incarnation, node index) of the pod.

    The incarnation is the gang's first incarnation plus the number of Volcano restarts. Node indices start at 0; the head pod has index 0.
    Raises `ConfigError` if a variable is missing or not valid.
    """
    incarnation = FIRST_INCARNATION.get(environment) + RESTARTS.get(environment)
    if TASK.get(environment) is PodTask.HEAD:
        return incarnation, 0
    return incarnation, TASK_INDEX.get(environment) + (BACKEND.get(environment) is TrainerBackend.NEMO_RL)


def heartbeat(count: int) -> bytes:
    """Return the content of a pod's heartbeat file: a counter and the host. Observers compare contents, so that no clocks are compared."""
    return json.dumps({"beat": count, "host": os.uname().nodename}).encode()
