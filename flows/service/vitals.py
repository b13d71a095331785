"""Says whether the installation works: its service, its disk, its Prefect server, and the traces that wait.

`take` measures, and `problems` judges the measurements without I/O. An installation in which no service has run yet has no service problem.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic import AwareDatetime

from ratchet.contracts.model import Frozen
from ratchet.flows.config.home import Home
from ratchet.flows.service.process import Sign, read_sign
from ratchet.materializer.receive.spool import spooled

LEAST_BYTES = 1 << 30
"""Free bytes on the disk of the home below which receivers, ingest and training begin to fail."""
SILENT_SECONDS = 60.0
"""Seconds without a sign of life after which a running service counts as hanging. It gives one every BEAT_SECONDS seconds."""
WAIT_SECONDS = 300.0
"""Age in seconds of the oldest waiting traces from which they are a backlog. The service takes new ones within seconds."""


class Backlog(Frozen):
    """Traces that a line has received and that no ingest has taken yet."""

    line: str
    requests: int
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


class Problem(Frozen):
    """Something that stops the installation from working, or that its operator should know."""

    level: Literal["error", "note"]
    about: Literal["service", "disk", "prefect", "backlog"]
    text: str


def take(home: Home, lines: Iterable[str], now: datetime, away: Callable[[Home], str | None]) -> Vitals:
    """Measure an installation. `away` returns the address of its Prefect server if that does not answer. Changes nothing."""
    sign, alive = read_sign(home)
    return Vitals(
        home=str(home.root),
        at=now,
        service=sign,
        alive=alive,
        free=shutil.disk_usage(home.root).free,
        prefect=away(home) if alive else None,
        backlogs=tuple(found for line in lines if (found := _backlog(home, line)) is not None),
    )


def _backlog(home: Home, line: str) -> Backlog | None:
    sizes, times = [], []
    for path in spooled(home.spool(line)):
        try:
            stat = path.stat()
        except FileNotFoundError:  # an ingest took it just now
            continue
        sizes.append(stat.st_size)
        times.append(stat.st_mtime)
    if not sizes:
        return None
    return Backlog(line=line, requests=len(sizes), bytes=sum(sizes), oldest=datetime.fromtimestamp(min(times), UTC))


def problems(found: Vitals) -> list[Problem]:
    """Return what is wrong, most urgent first."""
    return [*_service(found), *_disk(found), *_prefect(found), *_backlogs(found)]


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
        return (Problem(level="error", about="service", text=f"the service cannot work: {sign.trouble}"),)
    return ()


def _disk(found: Vitals) -> Sequence[Problem]:
    if found.free >= LEAST_BYTES:
        return ()
    text = f"the disk of {found.home} has {found.free / 1e9:.2f} GB free; below {LEAST_BYTES / 1e9:.0f} GB, traces and jobs fail"
    return (Problem(level="error", about="disk", text=f"{text}: free space, for example with `ratchet gc`"),)


def _prefect(found: Vitals) -> Sequence[Problem]:
    if found.prefect is None:
        return ()
    text = f"the Prefect server at {found.prefect} does not answer; lines go on, approvals are possible with `ratchet approve`"
    return (Problem(level="error", about="prefect", text=text),)


def _backlogs(found: Vitals) -> Iterable[Problem]:
    for one in found.backlogs:
        if (found.at - one.oldest).total_seconds() > WAIT_SECONDS:
            text = f"{one.line}: {one.requests:,} requests with traces ({one.bytes / 1e6:.1f} MB) wait for an ingest, the oldest since "
            yield Problem(level="error", about="backlog", text=f"{text}{_time(one.oldest)} ({_ago(found, one.oldest)})")


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _ago(found: Vitals, at: datetime) -> str:
    seconds = max(0.0, (found.at - at).total_seconds())
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} seconds ago"
