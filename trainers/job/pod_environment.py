"""Environment of the processes in a pod: the library path and the variables of a network plugin, added to those of the image.

A manifest can only replace a variable of the image. So the manifest names the additions, and process 1 of the pod makes them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ratchet.contracts.errors import Permanent
from ratchet.runtime.jobs.job_protocol import ENVIRONMENT_SCRIPT, LIBRARY_PATH

SCRIPT_SECONDS = 60.0
"""Maximum duration of the script of a network plugin."""


def completed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the library path and with the variables of the network plugin's script.

    Raises Permanent if the script is missing or fails, because NCCL would then use plain TCP.
    """
    whole = dict(environment)
    if ours := LIBRARY_PATH.find(environment):
        whole["LD_LIBRARY_PATH"] = ":".join(filter(None, [ours, environment.get("LD_LIBRARY_PATH")]))
    if script := ENVIRONMENT_SCRIPT.find(environment):
        whole |= scripted(Path(script), whole)
    return whole


def scripted(script: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of NCCL, that is, NCCL_*, that are set after the shell has read the script.

    Raises Permanent if the script is missing or fails.
    """
    if not script.is_file():
        raise Permanent(f"{script} is missing; check that the node has the network plugin and that the profile mounts its folder")
    shell = ["bash", "-c", 'set -a; . "$1" >&2 && exec env -0', "bash", str(script)]
    done = subprocess.run(shell, env=dict(environment), stdout=subprocess.PIPE, timeout=SCRIPT_SECONDS, check=False)
    if done.returncode:
        raise Permanent(f"{script} failed with exit code {done.returncode}; its output is in the log of the pod")
    pairs = (line.partition("=") for line in os.fsdecode(done.stdout).split("\0"))
    return {name: value for name, _, value in pairs if name.startswith("NCCL_")}


def umask_of(folder: Path) -> int:
    """Return the umask for the files of a job in `folder`, which contain user data.

    Only their owner may read them. If the process runs as root in a folder of another user, their group may, too: the service's.
    """
    return 0o007 if os.geteuid() == 0 and folder.stat().st_uid != 0 else 0o077
