"""`ratchet serve`: validates the loop files, starts the serving processes, and serves the lines until it receives a stop signal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
import zoneinfo
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.contracts.errors import ConfigError, RatchetError, Retryable
from ratchet.flows.cli.lines import is_file_name, named_loop
from ratchet.flows.cli.names import LineName, complete_line
from ratchet.flows.cli.output import json_option, open_installation, print_json, table
from ratchet.flows.cli.terminal import say
from ratchet.flows.composition.installation import Installation
from ratchet.flows.composition.pods import installation_exchange, refuse_local_parts
from ratchet.flows.config import variables
from ratchet.flows.config.load import load_loop
from ratchet.flows.engine.context import LineContext, process_holder
from ratchet.runtime.leading import lead
from ratchet.runtime.serving.exchange import is_in_pods

if TYPE_CHECKING:
    import psutil

    from ratchet.flows.service.claims import Claims
    from ratchet.flows.service.process import Beat

GUARD_SECONDS = 2.0
"""Seconds between two checks of a cluster's gangs."""
STOP_SECONDS = 60.0
"""Seconds after SIGTERM until `ratchet serve --stop` kills the service."""
AT_ONCE = 8
"""Number of lines that are started or stopped at the same time."""
START_SECONDS = 300.0
"""Seconds of the start of the lines after which the service counts as hanging."""
REPAIR_SECONDS = 60.0
"""Seconds that the start waits for the repairs of all lines, for example for model servers that load."""
GUARD_ENDS = 10.0
"""Seconds that the service waits for each running gang check when it stops. A check that hangs on an unreachable server is abandoned."""


@click.command()
@click.argument("loops", type=LineName(), nargs=-1, required=True, shell_complete=complete_line)
@click.option(
    "--port", default=0, show_default="the previous port, or a free one", help="Port of the Prefect server and its UI on 127.0.0.1."
)
@click.option(
    "--stop",
    is_flag=True,
    help="Stop all processes of LOOPS and the service: jobs, receivers, routers, model servers and the Prefect server.",
)
@json_option
def serve(loops: tuple[str, ...], port: int, stop: bool, as_json: bool) -> None:
    """Run the service for the lines of LOOPS: schedules, event triggers, approvals and rollouts.

    LOOPS are the paths of loop files, one per line, or the names of lines. The service stops on Ctrl-C or SIGTERM. Model servers, routers,
    receivers and the Prefect server keep running, so a restart does not interrupt users. Use --stop to stop them too; an interrupted job
    resumes from its last checkpoint when its line is served again.
    """
    installation = open_installation(lambda what, _done, total: say(what) if total == 0 else None)

    def named(loop: str) -> Path:
        return named_loop(installation, loop, quiet=as_json or is_file_name(loop))

    if stop:
        _stop(installation, lambda loop: installation.context(named(loop), late=True), loops, as_json)
        return
    _serve(installation, _checked([named(one) for one in loops]), port, as_json)


def _checked(paths: Sequence[Path]) -> list[Path]:
    """Validate the loop files and return their absolute paths. Raises ConfigError for a duplicate line or an unknown time zone."""
    lines: dict[str, Path] = {}
    for path in paths:
        loop = load_loop(path)
        if loop.line.name in lines:
            raise ConfigError(
                f"{lines[loop.line.name]} and {path} both define line {loop.line.name!r}; a line must have exactly one loop file"
            )
        lines[loop.line.name] = path.absolute()
        try:
            zoneinfo.ZoneInfo(loop.trigger.timezone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise ConfigError(
                f"{path}: trigger.timezone {loop.trigger.timezone!r} is not an IANA time zone such as Europe/Berlin"
            ) from None
    return list(lines.values())


def _serve(installation: Installation, paths: list[Path], port: int, as_json: bool) -> None:
    from ratchet.flows.prefect import server
    from ratchet.flows.service.standby import has_several_pods

    home, waits = installation.home, has_several_pods()
    loops = [load_loop(path) for path in paths]
    for loop in loops:
        refuse_local_parts(loop, home)
    contexts = [] if waits else [installation.context(path) for path in paths]
    if is_in_pods() and not server.is_external():
        raise ConfigError("the service runs in pods, but would start a Prefect server in its own; set PREFECT_API_URL to that of a server")
    say("starting the Prefect server …" if server.known_url(home) is None else "connecting to the Prefect server …")
    external = server.is_external()
    url = server.join_or_start(home, port)
    os.environ.update(server.settings(home, url))
    os.environ[variables.HOME] = str(home.root)
    if external:
        os.environ.pop(variables.PREFECT_OWN, None)

    from ratchet.flows.prefect import serve as service  # imported late: Prefect reads its settings on import
    from ratchet.flows.service.exchange import exchanging
    from ratchet.flows.service.memory import settle_after_start
    from ratchet.flows.service.process import only_one

    for path, loop in zip(paths, loops, strict=True):
        _cron_makes_sense(path, loop.trigger.cron)
    names = [loop.line.name for loop in loops]
    with only_one(home, url, waits) as beat, _leading(installation, names, beat) as release, _claimed(installation, names) as claims:
        contexts = contexts or [installation.context(path) for path in paths]  # a pod that has waited reads the files as they are now
        served = [service.Served(path, context.loop) for path, context in zip(paths, contexts, strict=True)]
        rows = _start_lines(list(zip(paths, contexts, strict=True)), installation, beat)
        settle_after_start()
        ui = url.removesuffix("/api")
        login = [] if external else [["all", "Prefect UI login file", str(home.prefect_login())]]
        _announce([["all", "Prefect UI and approvals", ui], *login, *rows], as_json)
        with _guarded(contexts, installation), exchanging(home, names, say):
            asyncio.run(service.serve(home, served, url, installation.progress, beat, claims))
    say("stopped; model servers, routers, receivers and the Prefect server keep running (stop them with `ratchet serve --stop LOOP.toml`)")
    service.end_process(release)


@contextmanager
def _leading(installation: Installation, lines: list[str], beat: Beat) -> Iterator[Callable[[], None]]:
    """Wait until this pod leads, if the service has several pods, and lead for the duration of the block.

    Yields the function that ends the leadership. It is for the end of the process, because threads may still work at the end of the block.
    """
    from ratchet.flows.service import standby
    from ratchet.flows.service.leadership import leading

    if not standby.has_several_pods():
        yield lambda: None
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the first process of a container has no default reaction
    cache = standby.Cache(installation.home, lambda: installation.ledger, lines)
    cache.begin()
    leadership = standby.wait_to_lead(lambda: standby.open_leadership(installation.home), cache, beat, say)
    with leading(leadership, _end_at_once):
        say("this pod leads")
        beat("")
        yield leadership.release


def _end_at_once(reason: str) -> None:
    """End the process, because another pod may work in its place. What it has begun, that pod repeats from the ledger."""
    say(f"this pod does not lead any more: {reason}; it ends and waits again")
    sys.stderr.flush()
    os._exit(1)


@contextmanager
def _claimed(installation: Installation, lines: list[str]) -> Iterator[Claims | None]:
    """Claim the lines, if the ledger is outside of the home folder, where another installation may use it as well.

    In pods, what this process publishes about a line carries the number of its claim. Raises ConfigError if another installation serves one
    of the lines.
    """
    if variables.LEDGER_URL not in os.environ:
        yield None
        return
    from ratchet.flows.composition.identity import installation_id
    from ratchet.flows.service.claims import Claims
    from ratchet.flows.service.standby import has_several_pods

    claims = Claims(installation.ledger, installation_id(installation.home), lines, has_several_pods())
    claims.take(datetime.now(UTC))
    if is_in_pods():
        exchange = installation_exchange()
        for line, number in claims.terms().items():
            # a ledger that was restored from a backup has given the numbers of what is published already
            lead(line, max(number, exchange.newest_term(line) + 1))
    try:
        yield claims
    finally:
        claims.release()


@contextmanager
def _guarded(contexts: Sequence[LineContext], installation: Installation) -> Iterator[None]:
    """Guard the gangs of all cluster lines for the duration of the block."""
    stop = threading.Event()
    guards = [
        threading.Thread(target=_guard, args=(context, installation, stop), daemon=True, name=f"guard-{context.line}")
        for context in contexts
        if context.loop.cluster is not None
    ]
    for guard in guards:
        guard.start()
    try:
        yield
    finally:
        stop.set()
        for guard in guards:
            guard.join(GUARD_ENDS)


def _guard(context: LineContext, installation: Installation, stop: threading.Event) -> None:
    from ratchet.flows.composition.cluster import guard_cluster

    for repair in guard_cluster(context.loop, context.folder, installation.home, GUARD_SECONDS, once=False, stop=stop):
        say(f"{context.line}: {repair}")


def _cron_makes_sense(path: Path, cron: str | None) -> None:
    from prefect.client.schemas.schedules import CronSchedule

    try:
        if cron is not None:
            CronSchedule(cron=cron)
    except ValueError:
        raise ConfigError(
            f"{path}: trigger.cron {cron!r} is not a valid schedule; use five fields: minute hour day month weekday"
        ) from None


def _start_lines(lines: Sequence[tuple[Path, LineContext]], installation: Installation, beat: Beat) -> list[list[str]]:
    """Start what answers for the lines, several at the same time, and give signs of life. Return the rows (line, service, address) to show.

    A line that cannot be served does not stop the others; the service tries again later. Raises its error if no line can be served.
    Repairs that take longer than REPAIR_SECONDS go on, and are left to the service if they have not begun.
    """
    rows: list[list[str]] = []
    errors: list[RatchetError] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started = [(context.line, pool.submit(_start_line, path, context, installation)) for path, context in lines]
        _await([future for _, future in started], START_SECONDS, beat)
    for name, future in started:
        try:
            rows += future.result()
        except RatchetError as error:
            errors.append(error)
            rows.append([name, "not served", str(error)])
            say(f"{name}: {error}")
    if len(errors) == len(lines):
        raise errors[0]
    repairing = ThreadPoolExecutor(AT_ONCE, "repair")
    repairs = [repairing.submit(_repair, context) for _, context in lines]
    _await(repairs, REPAIR_SECONDS, beat)
    repairing.shutdown(wait=False, cancel_futures=True)
    return rows


def _await(futures: Sequence[Future[Any]], seconds: float, beat: Beat) -> None:
    """Wait at most `seconds` until the futures are done, and give signs of life."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and wait(futures, min(left, 1.0)).not_done:
        beat("")


def _start_line(path: Path, context: LineContext, installation: Installation) -> list[list[str]]:
    """Let receiver and router answer for a line. Return the rows (line, service, address) to show."""
    from ratchet.flows.composition.services import start_receiver

    name, rows = context.line, []
    if any(source.kind == "receiver" for source in context.loop.sources):
        rows.append([name, "OTLP receiver", f"{start_receiver(context.loop, installation.home)}/v1/traces"])
        rows.append([name, "receiver credentials", f"`ratchet token list {path}`; `ratchet token add {path} ROLE` creates one"])
    if context.line_view().champion is None:
        return [*rows, [name, "model", f"none; run `ratchet adopt {path} MODEL_FOLDER`"]]
    return [
        [name, "chat (OpenAI API)", f"{context.router.url()}/v1"],
        *rows,
        [name, "deployment", f"ratchet-retrain/{name}: {_schedule(context)}"],
    ]


def _repair(context: LineContext) -> None:
    """Repair model servers, route and other copies of a line, and say what was repaired."""
    from ratchet.flows.engine.line import note_name
    from ratchet.flows.engine.reconcile import reconcile

    try:
        for text in [*note_name(context), *reconcile(replace(context, holder=process_holder()))]:
            say(f"{context.line}: {text}")
    except RatchetError as error:  # the service tries again
        say(f"{context.line}: {error}")


def _schedule(context: LineContext) -> str:
    trigger = context.loop.trigger
    cron = f"cron {trigger.cron!r} {trigger.timezone}, or " if trigger.cron else ""
    return f"opens a cycle on {cron}{trigger.new_traces} new traces, or with Run in Prefect"


def _announce(rows: list[list[str]], as_json: bool) -> None:
    if as_json:
        print_json([{"line": line, "what": what, "where": where} for line, what, where in rows])
    else:
        table("Serving", ["line", "service", "address"], rows)


def _stop(installation: Installation, context_of: Callable[[str], LineContext], loops: Sequence[str], as_json: bool) -> None:
    """Stop all processes: the serving process first, so that it restarts nothing, and the Prefect server last.

    A line whose loop file is refused, or that cannot be stopped, does not keep the others running. At the end, raises ConfigError with the
    reasons if a file was refused, else Retryable. Stops nothing if no file is accepted.
    """
    from ratchet.flows.prefect import server
    from ratchet.flows.service.process import mark_stopped
    from ratchet.flows.service.standby import has_several_pods
    from ratchet.runtime.serving.announcement import DRAIN_SECONDS

    if has_several_pods():
        raise ConfigError("the service has several pods, of which the others would go on; scale its Deployment to 0 with kubectl")

    lines: dict[str, LineContext] = {}
    refused: list[RatchetError] = []
    for loop in loops:
        try:
            context = context_of(loop)
        except RatchetError as error:
            refused.append(error)
        else:
            lines[context.line] = context
    failures = [str(error) for error in refused]
    if not lines:
        raise refused[0] if len(refused) == 1 else ConfigError("\n".join(failures))
    stopped = _stop_serving(installation)
    mark_stopped(installation.home)
    say(f"stopping; answers that have begun are finished first, within {DRAIN_SECONDS} s")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for texts, failure in pool.map(lambda context: _stop_parts(context, installation), lines.values()):
            stopped += texts
            failures += [failure] if failure else []
    if not server.is_external() and server.stop(installation.home):
        stopped.append("the Prefect server")
    if as_json:
        print_json(stopped)
    else:
        say("\n".join(f"stopped {what}" for what in stopped) or "nothing was running")
    if failures:
        text = "\n".join([*failures, "the processes of these lines may still run; mend this, and repeat the command"])
        raise ConfigError(text) if refused else Retryable(text)


def _stop_parts(context: LineContext, installation: Installation) -> tuple[list[str], str]:
    """Stop the job and the processes of a line. Return what was stopped, and why something was not; empty if everything was."""
    from ratchet.flows.composition.services import stop_line

    stopped = list[str]()
    try:
        stopped += _stop_job(context)
        stopped += stop_line(context, installation.home)
    except RatchetError as error:
        return stopped, f"{context.line}: {error}"
    return stopped, ""


def _stop_serving(installation: Installation, seconds: float = STOP_SECONDS) -> list[str]:
    """Stop the service, with SIGKILL if it still runs `seconds` after SIGTERM.

    A kill loses nothing, because the service continues from the ledger after any crash. Jobs and servers are not children of the service
    process, so they are not affected.
    """
    import psutil

    from ratchet.flows.service.process import serving_process

    process = serving_process(installation.home)
    if process is None:
        return []
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGTERM)
    if _has_ended(process, seconds):
        return ["the service"]
    for one in [*process.children(), process]:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    if not _has_ended(process, 10):
        raise Retryable(f"the service (pid {process.pid}) still runs 10 s after SIGKILL; retry")
    return [f"the service (with SIGKILL, because it still ran {seconds:g} s after SIGTERM)"]


def _has_ended(process: psutil.Process, seconds: float) -> bool:
    """Wait at most `seconds` until a process has ended. A process that its parent has not noticed yet has ended too."""
    import psutil

    from ratchet.local.processes import is_zombie

    until = time.monotonic() + seconds
    with suppress(psutil.NoSuchProcess):
        while process.is_running() and not is_zombie(process):
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
    return True


def _stop_job(context: LineContext) -> list[str]:
    opened = context.line_view().open_cycle
    cycle = context.cycle_view(opened) if opened else None
    if cycle is None or not cycle.incarnations or cycle.incarnations[-1].outcome is not None:
        return []
    with suppress(RatchetError):
        context.executor.cancel(cycle.incarnations[-1].job)
    return [f"the job {cycle.incarnations[-1].job}"]
