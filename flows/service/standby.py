"""A pod of the service that waits to take the place of the one that leads.

Where the service has several pods, Postgres and buckets have all state of the installation, and the home folder is a cache of one pod.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.ids import digest, line_stream
from ratchet.contracts.ports import Ledger
from ratchet.flows.composition.stores import is_shared
from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.flows.service.leadership import WAIT_SECONDS, Leadership
from ratchet.flows.service.process import Beat, read_sign
from ratchet.runtime.serving.exchange import EXCHANGE

_KEPT = ("serve.lock", "serve.json")
"""Files of the folder `prefect` that belong to the running process."""


def has_several_pods() -> bool:
    """Return whether the service of this installation has several pods."""
    return os.environ.get(variables.STANDBY) == "true"


def open_leadership(home: Home, ledger: Ledger) -> Leadership:
    """Return the leadership of the installation, for this pod. Raises ConfigError without the identity of the pod."""
    from ratchet.flows.ledger.postgres_store import database_time

    pod = os.environ.get(variables.POD)
    if not pod:
        raise ConfigError(f"{variables.STANDBY} is set, but {variables.POD} is not; set it to the uid of the pod")
    return Leadership(
        ledger, digest(os.environ.get(EXCHANGE, ""))[:12], f"{socket.gethostname()}/{pod}", lambda: database_time(home.ledger_url)
    )


def wait_to_lead(
    leadership: Leadership,
    prepare: Callable[[], None],
    beat: Beat,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when this pod leads. `prepare` is called before each attempt, and raises Retryable if the pod must not lead yet."""
    told = ""
    while True:
        leader = trouble = ""
        try:
            prepare()
            if leadership.take():
                return
            leader = leadership.leader().partition("/")[0]
        except Retryable as error:
            trouble = str(error)
        if (text := trouble or f"{leader} leads; this pod waits to take its place") != told:
            say(text)
            told = text
        beat(trouble, waits_for=leader)
        sleep(WAIT_SECONDS)


class Preparation:
    """Makes the home folder ready for a pod that may lead the `lines`."""

    def __init__(self, home: Home, ledger: Ledger, lines: Sequence[str]) -> None:
        self._home = home
        self._ledger = ledger
        self._lines = lines
        self._is_emptied = False

    def __call__(self) -> None:
        """Empty the folder once. Raises Retryable if an earlier release has the state of a line on another volume."""
        if not self._is_emptied and all(is_shared(self._home, line) for line in self._of_home()):
            empty(self._home.root)
            self._is_emptied = True
        begun = self._ledger.lengths([line_stream(line) for line in self._lines])
        for line in self._lines:
            if begun.get(line_stream(line)) and line not in self._of_home() and not is_shared(self._home, line):
                raise Retryable(
                    f"the state of line {line!r} is still on the volume of the pod that served it; run this release once with one replica "
                    "and that volume, which copies the state to the database"
                )

    def _of_home(self) -> list[str]:
        return sorted(path.name for path in (self._home.root / "lines").glob("*") if path.is_dir())


def empty(root: Path) -> None:
    """Delete what an earlier process has left in a home folder: another pod may have led since, so that it is out of date."""
    for path in sorted(root.glob("*")):
        for one in sorted(path.glob("*")) if path.name == "prefect" else [path]:
            if one.name not in _KEPT:
                shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()


def refuse_if_waiting(home: Home) -> None:
    """Raise ConfigError in a pod that does not lead. Two pods that write to the lake and the artifacts do not see each other's locks."""
    if not has_several_pods():
        return
    sign, alive = read_sign(home)
    if sign is None or not alive:
        raise ConfigError("this pod serves nothing; run the command in the pod of the service that leads")
    if sign.waits_for is not None:
        pod = sign.waits_for or "the pod that leads"
        raise ConfigError(f"this pod waits to take the place of {pod}, and this command writes; run it there: kubectl exec {pod} -- …")
