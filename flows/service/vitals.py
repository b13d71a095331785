"""Says whether the installation works: its service, its disk, its Prefect server, and the traces that wait.

`take` measures, and `problems` judges the measurements without I/O. An installation in which no service has run yet has no service problem.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import AwareDatetime

from ratchet.contracts.model import Frozen
from ratchet.flows.config.home import Home
from ratchet.flows.core.problem import Problem
from ratchet.flows.service.process import SILENT_SECONDS, Sign, read_sign

LEAST_BYTES = 1 << 30
"""Free bytes on the disk of the home below which receivers, ingest and training begin to fail."""
WAIT_SECONDS = 300.0
"""Age in seconds of the oldest waiting traces from which they are a backlog. The service takes new ones within seconds."""
ANSWER_SECONDS = 1.0
"""Seconds for which a command waits for the Prefect server. The service itself finds a server that takes longer and says so."""


class Backlog(Frozen):
    """Traces of a line that wait."""

    line: str
    at: Literal["receiver", "router"] = "receiver"
    """receiver: it has them, and no ingest has taken them yet. router: the receiver does not have them yet."""
    files: int
    """Number of files: requests to the receiver, or segments of the router's spool."""
    bytes: int
    oldest: AwareDatetime


class Vitals(Frozen):
    """Measurements of an installation."""

    home: str
    at: AwareDatetime
    service: Sign | None
    """The newest sign of life of a service. None: no service has run in this home."""
    alive: bool
    """Whether the process that gave it still runs."""
    free: int
    """Free bytes on the disk of the home."""
    prefect: str | None = None
    """Address of the Prefect server that the service uses and that does not answer."""
    backlogs: tuple[Backlog, ...] = ()


def take(home: Home, lines: Iterable[str], now: datetime, is_away: Callable[[str], bool]) -> Vitals:
    """Measure an installation. `is_away` tells whether no Prefect server answers at an address. Changes nothing."""
    sign, alive = read_sign(home)
    return Vitals(
        home=str(home.root),
        at=now,
        service=sign,
        alive=alive,
        free=_free(home.root),
        prefect=sign.prefect if sign is not None and alive and sign.prefect and is_away(sign.prefect) else None,
        backlogs=tuple(found for line in lines for found in backlogs(home, line)),
    )


def _free(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, which may not exist yet."""
    return shutil.disk_usage(next(one for one in (folder, *folder.parents) if one.exists())).free


def backlogs(home: Home, line: str) -> Iterator[Backlog]:
    """Yield what waits for an ingest of the line, and what its router on this machine has not sent yet."""
    for folder, at in ((home.spool(line), "receiver"), (home.serving(line) / "router" / "spool", "router")):
        sizes, times = [], []
        with suppress(FileNotFoundError), os.scandir(folder) as files:
            for file in files:
                if file.name.startswith("."):  # is being written
                    continue
                with suppress(FileNotFoundError, ValueError):  # taken just now, or not named by the time of its begin
                    sizes.append(file.stat().st_size)
                    times.append(int(file.name.partition("-")[0]))
        if times:
            oldest = datetime.fromtimestamp(min(times) / 1e9, UTC)
            yield Backlog.model_validate({"line": line, "at": at, "files": len(sizes), "bytes": sum(sizes), "oldest": oldest})


def is_away(url: str) -> bool:
    """Return whether nothing listens at the address of a Prefect API. Takes at most ANSWER_SECONDS.

    A server that accepts the connection may still hang. The service, which waits for its answers, says so by a sign of life.
    """
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(_refuses(url)), daemon=True)  # the look-up of a name has no time limit
    thread.start()
    thread.join(ANSWER_SECONDS)
    return found == [True]


def _refuses(url: str) -> bool:
    place = urlsplit(url)
    try:
        socket.create_connection((place.hostname, place.port or (443 if place.scheme == "https" else 80)), ANSWER_SECONDS).close()
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


def problems(found: Vitals) -> list[Problem]:
    """Return what is wrong, most urgent first."""
    return [*_disk(found), *_service(found), *_prefect(found), *_backlogs(found)]  # a full disk is also the cause of others


def _service(found: Vitals) -> Sequence[Problem]:
    sign = found.service
    if sign is None:
        return ()
    start = "start it with `ratchet serve LOOP.toml …`"
    if sign.stopped:
        return (Problem(level="note", about="service", text=f"the service was stopped at {_time(sign.at)}; {start}"),)
    if not found.alive:
        text = f"the service is not running: it ended without a stop, its last sign of life is of {_time(sign.at)} ({_ago(found, sign.at)})"
        return (Problem(level="error", about="service", text=f"{text}; {start}"),)
    if (found.at - sign.at).total_seconds() > SILENT_SECONDS:
        text = f"the service (process {sign.pid}) hangs: its last sign of life is of {_time(sign.at)} ({_ago(found, sign.at)})"
        return (Problem(level="error", about="service", text=f"{text}; restart it, nothing is lost"),)
    if sign.trouble:
        return (Problem(level="error", about="service", text=f"the service cannot do its work: {sign.trouble}"),)
    if sign.waits_for is not None:
        leader = sign.waits_for or "another pod"
        return (Problem(level="note", about="service", text=f"this pod waits to take the place of {leader}, which serves the lines"),)
    return ()


def _disk(found: Vitals) -> Sequence[Problem]:
    if found.free >= LEAST_BYTES:
        return ()
    text = f"the disk of {found.home} has {found.free / 1e9:.2f} GB free; below {LEAST_BYTES / 1e9:.0f} GB, traces and jobs fail"
    return (Problem(level="error", about="disk", text=f"{text}: free space, for example with `ratchet gc`"),)


def _prefect(found: Vitals) -> Sequence[Problem]:
    if found.prefect is not None:
        text = f"the Prefect server at {found.prefect} does not answer"
    elif found.alive and found.service is not None and found.service.prefect_trouble:
        text = f"the service cannot use Prefect: {found.service.prefect_trouble}"
    else:
        return ()
    text += "; rollouts, rollbacks and ingest go on, but no cycle does; `ratchet approve` works"
    return (Problem(level="error", about="prefect", text=text),)


def _backlogs(found: Vitals) -> Iterable[Problem]:
    for one in found.backlogs:
        if (found.at - one.oldest).total_seconds() > WAIT_SECONDS:
            size = f"{one.bytes / 1e6:.1f} MB"
            text = (
                f"{one.line}: {one.files:,} requests with traces ({size}) wait for an ingest"
                if one.at == "receiver"
                else f"{one.line}: the router has {size} of traces that the receiver does not take"
            )
            yield Problem(level="error", about="backlog", text=f"{text}, the oldest since {_time(one.oldest)} ({_ago(found, one.oldest)})")


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _ago(found: Vitals, at: datetime) -> str:
    seconds = max(0.0, (found.at - at).total_seconds())
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} seconds ago"
