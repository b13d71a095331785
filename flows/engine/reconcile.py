"""Makes the derived copies follow the ledger: servers, routes, registry aliases, jobs, resume points. Repairs and reports differences."""

from __future__ import annotations

from pathlib import Path

from ratchet.contracts.cycle import Append
from ratchet.contracts.errors import Incomplete, RatchetError, Retryable
from ratchet.contracts.ids import cycle_stream, line_stream, rollout_stream
from ratchet.contracts.jobs.training import JobState
from ratchet.contracts.moment import moment_in, seconds_between
from ratchet.contracts.rows import RolledBack, row_of
from ratchet.contracts.schema import stamped
from ratchet.contracts.serving import ModelVersion, Route
from ratchet.contracts.steps import State, Step
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.folds.line import LineView
from ratchet.flows.core.folds.rollout import RolloutView
from ratchet.flows.core.rollouts.rollout import SetWeight, candidate_share
from ratchet.flows.engine.context import LineContext, leased
from ratchet.flows.engine.effects import job_of, lay_resume_point, loading, scale, served_names, sole_route
from ratchet.flows.engine.model_cards import card_of
from ratchet.flows.engine.rollouts.rollout import step_route
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.json_files import read_json

STARTS, WAITS = "began to start", "waits for"
"""First words of the texts about a server that nothing waits for, when its start was requested and until it answers."""
KEPT_SECONDS = 3600.0
"""Seconds for which the version before the champion keeps all of its servers."""
_HAS_CANDIDATE = {State.ACCEPTED, State.EVALUATED, State.VERDICT, State.REGISTERED, State.ROLLOUT_APPROVED, State.ROLLING}


def reconcile(context: LineContext, wait: float = 0.0) -> list[str]:
    """Carry out a requested rollback and repair all derived copies. Return one text per repair.

    If another process still holds the line's lease after `wait` seconds, only the rollback is carried out.
    """
    repairs = go_back(context)
    try:
        with leased(context, "the reconciler", wait=wait):
            return repairs + converge(context)
    except Retryable as error:
        return [*repairs, f"skipped: {error}"]


def go_back(context: LineContext) -> list[str]:
    """Carry out a requested rollback of a promoted version. Return one text if the version was rolled back.

    This uses a separate lease. An effect that holds the line's lease for minutes must not keep users on a bad version.
    The open cycle ends at its next turn. While a rollout runs, its next tick rolls back instead.
    """
    line = context.line_view()
    if not line.rollback_asked or line.champion is None or _rolling(context, line):
        return []
    with leased(context, "a rollback", f"back/{line.line}") as lease:
        line = context.line_view()
        if not line.rollback_asked or line.champion is None or _rolling(context, line):
            return []
        to, actor = line.previous, line.rollback_asked
        if to is not None:
            context.router.set(sole_route(context, to, f"line/{line.line}/back/{line.seq}"))
        row = row_of("rolled_back", RolledBack(to=to, gone=line.champion, actor=actor, reason=f"requested by {actor}"))
        context.ledger.append([Append(stream=line_stream(line.line), after=line.seq, rows=(row,))], lease, context.clock.now())
    return [f"rolled back from {line.champion.tag} to {to.tag}, requested by {actor}"] if to else []


def _rolling(context: LineContext, line: LineView) -> bool:
    return line.open_cycle is not None and (line.previous is None or context.cycle_view(line.open_cycle).state is State.ROLLING)


def converge(context: LineContext) -> list[str]:
    """Repair servers, route, registry aliases, jobs and resume points, in this order. Return one text per repair.

    A failure in one of them does not prevent the repair of the others.
    """
    line = context.line_view()
    if line.champion is None:
        return []
    cycle = context.cycle_view(line.open_cycle) if line.open_cycle else None
    rollout = context.rollout_view(rollout_stream(cycle.id)) if cycle else None
    repairs: list[str] = []
    for repair in (_servers, _route, _capacity, _aliases, _jobs, _pins):
        try:
            repairs += repair(context, line, cycle, rollout)
        except RatchetError as error:
            repairs.append(f"could not repair {repair.__name__[1:]}: {error}")
        except Exception as error:  # of an extension or a damaged file; the message may quote a user, so only the type is shown
            repairs.append(f"could not repair {repair.__name__[1:]}: it raised {type(error).__name__}")
    return repairs


def wanted_versions(line: LineView, cycle: CycleView | None) -> list[ModelVersion]:
    """List the versions whose servers must run: the champion, the previous champion for a rollback, and an open cycle's candidate."""
    wanted = [line.champion, line.previous]
    if cycle is not None and cycle.state in _HAS_CANDIDATE:
        wanted.append(cycle.candidate)
    return list({version.tag: version for version in wanted if version}.values())


def _servers(context: LineContext, line: LineView, cycle: CycleView | None, rollout: RolloutView | None) -> list[str]:
    """Start what must run, and stop what is drained.

    On a cluster, only the start of the champion is waited for: a large model loads for half an hour, in which a tick could not roll back.
    """
    running = {endpoint.tag for endpoint in context.server.running()}
    wanted = {version.tag: version for version in wanted_versions(line, cycle)}
    shares = _shares(context, line, cycle, rollout) if context.server.capabilities.scales else {}
    repairs = []
    for tag, version in wanted.items():
        _drain_file(context, tag).unlink(missing_ok=True)
        if tag not in running:
            context.progress(f"starting the server of {tag} …", 0, 0)
            try:
                if tag in shares and version != line.champion:
                    began = scale(context, version, shares[tag][1], wait=False)
                    repairs.append(f"{STARTS if began else WAITS} the server of {tag}")
                else:
                    context.server.ensure(version)
                    repairs.append(f"started the server of {tag}")
            except RatchetError as error:  # a server that cannot start must not block the others
                repairs.append(f"could not start the server of {tag}: {error}")
    for tag in running - wanted.keys():
        if _is_drained(context, tag):
            context.server.stop(tag)
            repairs.append(f"stopped the server of {tag}")
    return repairs


def _capacity(context: LineContext, line: LineView, cycle: CycleView | None, rollout: RolloutView | None) -> list[str]:
    """Adapt the numbers of servers: all for the champion, the present share for a candidate, one for the version before the champion.

    That version keeps all of its servers for an hour, because a rollback soon after a promotion is the most likely one. Nothing waits here.
    """
    if not context.server.capabilities.scales:
        return []
    running = {endpoint.tag for endpoint in context.server.running()}
    return [
        f"adapted the number of servers of {tag} to {share:g} % of the sessions"
        for tag, (version, share) in _shares(context, line, cycle, rollout).items()
        if tag in running and scale(context, version, share, wait=False)
    ]


def _shares(
    context: LineContext, line: LineView, cycle: CycleView | None, rollout: RolloutView | None
) -> dict[str, tuple[ModelVersion, float]]:
    """Return tag -> version and percentage of the sessions for which it needs servers."""
    wanted: dict[str, tuple[ModelVersion, float]] = {}
    if cycle is not None and cycle.state in _HAS_CANDIDATE and cycle.candidate is not None:
        step = rollout.steps[-1] if rollout is not None and rollout.steps and rollout.end is None else None
        wanted[cycle.candidate.tag] = cycle.candidate, candidate_share(step.weight, rollout.opened.settings) if step and rollout else 0
    if line.previous is not None:
        changed = next((row.at for row in reversed(line.rows) if row.kind in ("champion", "rolled_back")), None)
        recent = changed is not None and (context.clock.now() - changed).total_seconds() < KEPT_SECONDS
        wanted[line.previous.tag] = line.previous, 100 if recent else 0
    if line.champion is not None:
        wanted[line.champion.tag] = line.champion, 100
    if rollout is not None and rollout.end == "promoted" and cycle is not None and cycle.candidate is not None:
        wanted[cycle.candidate.tag] = cycle.candidate, 100  # it serves all sessions, and is the champion when the cycle ends
    return wanted


def _is_drained(context: LineContext, tag: str) -> bool:
    """Return whether the server of a version can stop without an effect on users. If not, the next look decides again.

    The route in force must exclude the version. In addition, no request to it is in flight, or `serving.drain` seconds have passed since
    the first look that found it excluded. A file records the time of that look. The time does not count while a replica of the router has
    not confirmed the route.
    """
    begun = _drain_file(context, tag)
    route = context.router.read(context.line)
    if route is None or any(backend.tag == tag and backend.weight > 0 for backend in route.backends):
        begun.unlink(missing_ok=True)
        return False
    try:
        is_idle = _is_idle(context, tag)
    except Incomplete:  # a replica of the router may still send requests to the version, however long that takes
        begun.unlink(missing_ok=True)
        return False
    if is_idle or context.loop.serving.drain == 0:
        begun.unlink(missing_ok=True)
        return True
    now, since = context.clock.moment(), moment_in(read_json(begun) or {})
    if since is None:
        write_atomic(begun, stamped(now._asdict()))
        return False
    if seconds_between(since, now) < context.loop.serving.drain:
        return False
    begun.unlink(missing_ok=True)
    return True


def _is_idle(context: LineContext, tag: str) -> bool:
    """Return whether the router reports that it has no request to a version in flight. Raises Incomplete if a replica has not confirmed."""
    try:
        return not context.router.in_flight(context.line).get(tag)
    except Incomplete:
        raise
    except Exception:  # unknown, or the router of an extension has no such method
        return False


def _drain_file(context: LineContext, tag: str) -> Path:
    return context.scratch / "draining" / f"{context.line}-{tag}.json"


def _route(context: LineContext, line: LineView, cycle: CycleView | None, rollout: RolloutView | None) -> list[str]:
    wanted = _wanted_route(context, line, cycle, rollout)
    current = context.router.read(line.line)
    if wanted is None or (current is not None and _same(current, wanted)):
        return []
    context.router.set(wanted)
    return [f"routed {line.line} to {', '.join(f'{b.tag} {b.weight:g} %' for b in wanted.backends)}"]


def _wanted_route(context: LineContext, line: LineView, cycle: CycleView | None, rollout: RolloutView | None) -> Route | None:
    if rollout is not None and cycle is not None and rollout.end is None and rollout.back is None and rollout.steps:
        step = rollout.steps[-1]
        if not loading(context, rollout.candidate):
            return step_route(rollout, SetWeight(step.index, step.weight), rollout.opened.settings, context)
        if context.router.read(line.line) is not None:
            return None  # nothing waits here for the candidate; if there is no route, the champion answers everybody meanwhile
    if rollout is not None and rollout.end == "promoted":
        return None  # the cycle's promote step sets and records this route
    return sole_route(context, line.champion, line_stream(line.line)) if line.champion else None


def names_differ(context: LineContext) -> bool:
    """Whether the route in force has other model names than the line. False if there is no route."""
    served, former = served_names(context)
    route = context.router.read(context.line)
    return route is not None and route.names != (served, *former)


def _same(a: Route, b: Route) -> bool:
    """Whether two routes are equal, ignoring the annotation."""
    return a.backends == b.backends and a.names == b.names and a.salt == b.salt


ALIASES = ("champion", "candidate", "previous")
"""Aliases that follow the ledger. Those that a user of the registry sets under other names stay."""


def wanted_aliases(line: LineView, cycle: CycleView | None) -> dict[str, str]:
    """Return alias -> tag as the ledger has them. `cycle` is the open one. Its candidate counts from its registration on."""
    wanted = {"champion": line.champion, "previous": line.previous}
    if cycle is not None and cycle.state in _HAS_CANDIDATE and cycle.has(Step.REGISTER):
        wanted["candidate"] = cycle.candidate
    return {alias: version.tag for alias, version in wanted.items() if version is not None}


def _aliases(context: LineContext, line: LineView, cycle: CycleView | None, _rollout: RolloutView | None) -> list[str]:
    if line.champion is None or (cycle is not None and cycle.state is State.ROLLING):
        return []
    repairs: list[str] = []
    current = context.registry.aliases(line.line)
    wanted = wanted_aliases(line, cycle)
    changed = [alias for alias in ALIASES if current.get(alias) != wanted.get(alias)]
    if line.base is not None and any(wanted.get(alias) == line.base.tag for alias in changed):
        _register_base(context, line.base)
    cards = {tag for alias in changed for tag in (current.get(alias), wanted.get(alias)) if tag is not None}
    for tag in sorted(cards):  # before the aliases, so that a failure repeats both
        version, origin = _made(context, line, tag)
        if version is not None:
            context.registry.describe(line.line, tag, card_of(context.artifacts, version, origin, line))
    for alias in changed:
        if alias in wanted:
            context.registry.alias(line.line, alias, wanted[alias])
            repairs.append(f"set the registry's alias {alias} to {wanted[alias]}")
        else:
            context.registry.unalias(line.line, alias)
            repairs.append(f"removed the registry's alias {alias}")
    return repairs


def _register_base(context: LineContext, base: ModelVersion) -> None:
    """Register the adopted model unless it is registered. No step of a cycle does it."""
    context.progress(f"registering {base.tag} …", 0, 0)
    folder = context.artifacts.fetch(base.model.files, context.scratch / "models" / base.model.files)
    context.registry.register(base, folder, {"ratchet.adopted": "true", "ratchet.model": base.model.id}, {})


def _made(context: LineContext, line: LineView, tag: str) -> tuple[ModelVersion | None, CycleView | None]:
    """Return the version with a tag and the cycle that made it. Newer cycles come first, because their versions change."""
    if line.base is not None and line.base.tag == tag:
        return line.base, None
    for number in range(line.cycles, 0, -1):
        cycle = context.cycle_view(cycle_stream(line.line, number))
        if cycle.candidate is not None and cycle.candidate.tag == tag:
            return cycle.candidate, cycle
    return None, None


def _jobs(context: LineContext, line: LineView, cycle: CycleView | None, _rollout: RolloutView | None) -> list[str]:
    """Cancel orphaned jobs, those of ended cycles and of superseded attempts, and reconcile every job of the line."""
    if line.cycles == 0:
        return []
    wanted, repairs = _wanted_job(context, cycle), []
    for name in context.executor.live():
        try:
            orphaned = name != wanted and context.executor.observe(name).state is not JobState.ENDED
            if orphaned and context.executor.cancel(name):
                repairs.append(f"cancelled orphaned job {name}")
            context.executor.reconcile(name)
        except RatchetError as error:  # a job whose result is out of reach must not block the others
            repairs.append(f"could not reconcile job {name}: {error}")
    return repairs


def _pins(context: LineContext, _line: LineView, cycle: CycleView | None, _rollout: RolloutView | None) -> list[str]:
    """Pin the newest accepted checkpoint again if that failed earlier. Only needed where the cluster restarts jobs by itself."""
    if not context.executor.restarts or cycle is None or not cycle.incarnations or cycle.incarnations[-1].outcome is not None:
        return []
    attempt = cycle.incarnations[-1].attempt
    points, spec = cycle.resumable(attempt), job_of(context, cycle, attempt)
    before = context.executor.pinned(spec)
    if not points or before == points[0]:
        return []
    resume, refused = lay_resume_point(context, cycle, spec)
    changed = context.executor.pinned(spec) != before
    repairs = [f"pinned step {resume.step} as the resume point of {spec.name}"] if changed and resume else []
    return repairs + [f"did not pin {one}" for one in refused]


def _wanted_job(context: LineContext, cycle: CycleView | None) -> str | None:
    """Return the job name of the open cycle's newest attempt, or None.

    This includes an attempt that is only intended: the service may have crashed between the submission and its `done` row.
    """
    if cycle is None or cycle.state not in (State.TRAINING_APPROVED, State.ATTEMPT):
        return None
    newest = max((int(key.split("/")[1]) for key in cycle.intended if key.startswith(f"{Step.TRAIN}/")), default=None)
    begun = cycle.incarnations[-1] if cycle.incarnations else None
    if newest is None or (begun and begun.attempt == newest):
        return begun.job if begun else None  # the submitted name: a later release may derive another name for the same attempt
    return job_of(context, cycle, newest).name
