"""Identity of a gang's pod, read from the environment variables that k8s/manifests/gang_manifest.py and Volcano set."""

from __future__ import annotations

from collections.abc import Mapping


def identity(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return (incarnation, node index) of the pod.

    The incarnation is the gang's first incarnation plus the number of Volcano restarts. Node indices start at 0; the head pod has index 0.
    Raises `KeyError` or `ValueError` if the variables are missing or malformed.
    """
    incarnation = int(environment["RATCHET_FIRST_INCARNATION"]) + int(environment.get("RATCHET_RESTARTS") or 0)
    if environment["RATCHET_TASK"] == "head":
        return incarnation, 0
    return incarnation, int(environment["VC_TASK_INDEX"]) + int(environment.get("RATCHET_BACKEND") == "nemo-rl")
