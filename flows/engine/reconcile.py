"""Makes the copies follow the ledger: servers, routes, registry aliases, jobs. What differs is repaired, and said."""

from __future__ import annotations

from contracts.cycle import Append, Row, State, Step
from contracts.errors import RatchetError, Retryable
from contracts.ids import line_stream, rollout_stream
from contracts.loop import RolloutSettings
from contracts.serving import ModelVersion, Route
from flows.core.rollout import SetWeight
from flows.core.views import CycleView, LineView, RolloutView
from flows.engine.effects import job_of, lay_resume_point, sole_route
from flows.engine.house import House, leased
from flows.engine.rollout import step_route

_HAS_CANDIDATE = {State.ACCEPTED, State.EVALUATED, State.VERDICT, State.REGISTERED, State.ROLLOUT_APPROVED, State.ROLLING}


def reconcile(house: House, wait: float = 0.0) -> list[str]:
    """What was repaired, in words. Where another process works on the line, and still does after `wait` seconds, only a rollback
    is carried out: it waits for nobody."""
    said = go_back(house)
    try:
        with leased(house, wait=wait):
            return said + converge(house)
    except Retryable as error:
        return [*said, f"left alone: {error}"]


def go_back(house: House) -> list[str]:
    """Carries out a rollback of a promoted version. Under a lease of its own, so that an evaluation or a training that holds the
    line's lease for minutes does not keep users on a bad version; the open cycle ends when it looks again. While a rollout
    runs, its next tick goes back instead."""
    line = house.line_view()
    if not line.rollback_asked or line.champion is None or _rolling(house, line):
        return []
    with leased(house, f"back/{line.line}") as lease:
        line = house.line_view()
        if not line.rollback_asked or line.champion is None or _rolling(house, line):
            return []
        to, actor = line.previous, line.rollback_asked
        if to is not None:
            house.router.set(sole_route(house, to, f"line/{line.line}/back/{line.seq}"))
        data = {
            "to": to.model_dump(mode="json") if to else None,
            "from": line.champion.model_dump(mode="json"),
            "actor": actor,
            "reason": f"{actor} asked for it",
        }
        row = Row(kind="rolled_back", data=data)
        house.ledger.append([Append(stream=line_stream(line.line), after=line.seq, rows=(row,))], lease, house.clock.now())
    return [f"rolled back from {line.champion.tag} to {to.tag}, asked by {actor}"] if to else []


def _rolling(house: House, line: LineView) -> bool:
    return line.open_cycle is not None and (line.previous is None or house.cycle_view(line.open_cycle).state is State.ROLLING)


def converge(house: House) -> list[str]:
    """Servers first, then the route, aliases, jobs and where these resume; a failure of one does not keep the others from being mended."""
    line = house.line_view()
    if line.champion is None:
        return []
    cycle = house.cycle_view(line.open_cycle) if line.open_cycle else None
    rollout = house.rollout_view(rollout_stream(cycle.id)) if cycle else None
    mended: list[str] = []
    for mend in (_servers, _route, _aliases, _jobs, _pins):
        try:
            mended += mend(house, line, cycle, rollout)
        except RatchetError as error:
            mended.append(f"could not mend {mend.__name__[1:]}: {error}")
    return mended


def wanted_versions(line: LineView, cycle: CycleView | None) -> list[ModelVersion]:
    """Who must be up: the champion, the one before it (warm, for a rollback), and an open cycle's candidate."""
    wanted = [line.champion, line.previous]
    if cycle is not None and cycle.state in _HAS_CANDIDATE:
        wanted.append(cycle.candidate)
    return list({version.tag: version for version in wanted if version}.values())


def _servers(house: House, line: LineView, cycle: CycleView | None, _rollout: RolloutView | None) -> list[str]:
    running = {endpoint.tag for endpoint in house.server.running()}
    wanted = {version.tag: version for version in wanted_versions(line, cycle)}
    mended = []
    for tag, version in wanted.items():
        if tag not in running:
            try:
                house.server.ensure(version)
                mended.append(f"started the server of {tag}")
            except RatchetError as error:  # one that cannot start must not keep the others from it
                mended.append(f"could not start the server of {tag}: {error}")
    for tag in running - wanted.keys():
        house.server.stop(tag)
        mended.append(f"stopped the server of {tag}")
    return mended


def _route(house: House, line: LineView, cycle: CycleView | None, rollout: RolloutView | None) -> list[str]:
    wanted = _wanted_route(house, line, cycle, rollout)
    current = house.router.read(line.line)
    if wanted is None or (current is not None and _same(current, wanted)):
        return []
    house.router.set(wanted)
    return [f"routed {line.line} as {', '.join(f'{b.tag} {b.weight:g} %' for b in wanted.backends)}"]


def _wanted_route(house: House, line: LineView, cycle: CycleView | None, rollout: RolloutView | None) -> Route | None:
    if rollout is not None and cycle is not None and rollout.end is None and rollout.steps:
        step = rollout.steps[-1]
        return step_route(rollout, SetWeight(step.index, step.weight), RolloutSettings.model_validate(rollout.opened["settings"]), house)
    if rollout is not None and rollout.end == "promoted":
        return None  # the cycle's promotion sets it, and records that
    return sole_route(house, line.champion, line_stream(line.line)) if line.champion else None


def _same(a: Route, b: Route) -> bool:
    """Equal but for the annotation."""
    return a.backends == b.backends and a.served_model == b.served_model


def _aliases(house: House, line: LineView, cycle: CycleView | None, _rollout: RolloutView | None) -> list[str]:
    if line.champion is None or (cycle is not None and cycle.state is State.ROLLING):
        return []
    mended = []
    if line.champion.cycle is None and house.registry.aliases(line.line) == {}:
        folder = house.artifacts.fetch(line.champion.model.files, house.scratch / "models" / line.champion.model.files)
        house.registry.register(line.champion, folder, {"ratchet.adopted": "true", "ratchet.model": line.champion.model.id}, {})
    if house.registry.aliases(line.line).get("champion") != line.champion.tag:
        house.registry.alias(line.line, "champion", line.champion.tag)
        mended.append(f"pointed the registry's champion at {line.champion.tag}")
    return mended


def _jobs(house: House, line: LineView, cycle: CycleView | None, _rollout: RolloutView | None) -> list[str]:
    """Nobody's job trains on: not one of a cycle that has ended, nor of an attempt that another has followed."""
    if line.cycles == 0:
        return []
    wanted, mended = _wanted_job(house, cycle), []
    for name in house.executor.live():
        if name != wanted:
            house.executor.cancel(name)
            mended.append(f"cancelled the job {name}, which nobody waits for")
    return mended


def _pins(house: House, _line: LineView, cycle: CycleView | None, _rollout: RolloutView | None) -> list[str]:
    """Where the cluster restarts a job by itself, its resume point is what the ledger accepted last, though laying it down failed then."""
    if not house.executor.restarts or cycle is None or not cycle.incarnations or cycle.incarnations[-1].outcome is not None:
        return []
    attempt = cycle.incarnations[-1].attempt
    points, spec = cycle.resumable(attempt), job_of(house, cycle, attempt)
    before = house.executor.pinned(spec)
    if not points or before == points[0]:
        return []
    laid = lay_resume_point(house, cycle, spec)
    changed = house.executor.pinned(spec) != before
    mended = [f"laid down step {laid['resume']['step']} as where {spec.name} resumes"] if changed else []
    return mended + [f"did not lay down {refused}" for refused in laid.get("refused", ())]


def _wanted_job(house: House, cycle: CycleView | None) -> str | None:
    """The job of the open cycle's newest attempt: also where we died after it was submitted and before that was written down."""
    if cycle is None or cycle.state not in (State.TRAINING_APPROVED, State.ATTEMPT):
        return None
    newest = max((int(key.split("/")[1]) for key in cycle.intended if key.startswith(f"{Step.TRAIN}/")), default=None)
    begun = cycle.incarnations[-1] if cycle.incarnations else None
    if newest is None or (begun and begun.attempt == newest):
        return begun.job if begun else None  # as it was submitted: a later version of ours may name the same work otherwise
    return job_of(house, cycle, newest).name
