"""Which of a gang's pods a process is in, as the cluster tells it (k8s/gang.py sets the variables)."""

from __future__ import annotations

from collections.abc import Mapping


def identity(environment: Mapping[str, str]) -> tuple[int, int]:
    """(incarnation, node): the gang's first incarnation plus Volcano's restarts, and the pod's number among its nodes, from 0.
    KeyError or ValueError where the environment is not a gang's."""
    incarnation = int(environment["RATCHET_FIRST_INCARNATION"]) + int(environment.get("RATCHET_RESTARTS") or 0)
    if environment["RATCHET_TASK"] == "head":
        return incarnation, 0
    return incarnation, int(environment["VC_TASK_INDEX"]) + int(environment.get("RATCHET_BACKEND") == "nemo-rl")
