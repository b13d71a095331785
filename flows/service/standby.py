"""A pod of the service that waits to take the place of the one that leads.

Where the service has several pods, Postgres and buckets have all state of the installation, and the home folder is a cache of one pod.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Sequence

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.ids import line_stream
from ratchet.contracts.ports import Ledger
from ratchet.flows.composition.stores import is_shared
from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.flows.service.leadership import WAIT_SECONDS, Leadership
from ratchet.flows.service.process import Beat, read_sign

_MARK = "cache-of-a-pod"
"""File that says that the home folder may be emptied."""
_KEPT = ("serve.lock", "serve.json", _MARK)
"""Files that stay: those of the folder `prefect` that belong to the running process, and the mark."""


def has_several_pods() -> bool:
    """Return whether the service of this installation has several pods. Raises ConfigError if the setting is neither `true` nor empty."""
    given = os.environ.get(variables.STANDBY) or ""
    if given not in ("", "true"):
        raise ConfigError(f"{variables.STANDBY}={given!r} is not valid; set it to true, or leave it out")
    return given == "true"


def open_leadership(home: Home) -> Leadership:
    """Return the leadership of the installation, for this pod. It has connections of its own, whose requests fail rather than wait.

    Raises ConfigError without the identity of the pod, and Retryable if database or exchange cannot be reached.
    """
    from ratchet.flows.composition.identity import installation_id
    from ratchet.flows.ledger.postgres_store import database_time
    from ratchet.flows.ledger.sql import SqlLedger, prompt

    pod = os.environ.get(variables.POD)
    if not pod:
        raise ConfigError(f"{variables.STANDBY} is set, but {variables.POD} is not; set it to the uid of the pod")
    url = prompt(home.ledger_url)
    return Leadership(SqlLedger(url), installation_id(home), f"{socket.gethostname()}/{pod}", lambda: database_time(url))


def wait_to_lead(
    opened: Callable[[], Leadership],
    cache: Cache,
    beat: Beat,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Leadership:
    """Return the leadership when this pod leads. `opened` returns it, at its first success. The home folder is empty then."""
    told, leadership = "", None
    while True:
        leader = trouble = ""
        try:
            leadership = leadership or opened()
            cache.check_shared()
            if leadership.take():
                cache.empty()  # while it waited, commands may have read what was erased since
                return leadership
            leader = leadership.leader().partition("/")[0]
        except Retryable as error:
            trouble = str(error)
        if (text := trouble or f"{leader} leads; this pod waits to take its place") != told:
            say(text)
            told = text
        beat(trouble, waits_for=leader)
        sleep(WAIT_SECONDS)


class Cache:
    """The home folder of a pod that may lead the `lines`."""

    def __init__(self, home: Home, ledger: Callable[[], Ledger], lines: Sequence[str]) -> None:
        self._home = home
        self._ledger = ledger
        self._lines = lines
        self._is_shared = False

    def begin(self) -> None:
        """Empty the folder. Raises ConfigError, and deletes nothing, if it has content that no pod of this kind has left."""
        mark = self._home.root / _MARK
        content = sorted(path.name for path in self._home.root.glob("*") if path.name not in ("prefect", _MARK))
        if content and not mark.exists():
            raise ConfigError(
                f"{variables.STANDBY} is set, so a pod empties {self._home.root} when it starts, but it has {', '.join(content[:5])} of a "
                "service with one pod; give the pod an empty folder"
            )
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        self.empty()

    def empty(self) -> None:
        """Delete what an earlier process or a command has left: another pod may have led since, so that it is out of date."""
        for path in sorted(self._home.root.glob("*")):
            for one in sorted(path.glob("*")) if path.name == "prefect" else [path]:
                if one.name not in _KEPT:
                    shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()

    def check_shared(self) -> None:
        """Raise Retryable if an earlier release has the state of a line on a volume."""
        if self._is_shared:
            return
        begun = self._ledger().lengths([line_stream(line) for line in self._lines])
        for line in self._lines:
            if begun.get(line_stream(line)) and not is_shared(self._home, line):
                raise Retryable(
                    f"the state of line {line!r} is still on the volume of the pod that served it; run this release once with one replica "
                    "and that volume, which copies the state to the database"
                )
        self._is_shared = True


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
