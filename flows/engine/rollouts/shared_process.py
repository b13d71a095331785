"""Notes in a rollout's stream when the process died that champion and candidate share (`flows/core/rollouts/shared_process.py`)."""

from __future__ import annotations

from typing import NamedTuple, cast

from ratchet.contracts.cycle import Lease
from ratchet.contracts.ports import SharingServer
from ratchet.contracts.rows import Died, row_of
from ratchet.flows.core.folds.rollout import RolloutView
from ratchet.flows.core.rollouts.shared_process import died_too_often, is_down
from ratchet.flows.engine.context import LineContext, append_to_rollout


class ServerState(NamedTuple):
    """What a tick has read about the process that both versions share, or about the candidate's servers."""

    stop: str | None = None
    """Reason to roll back, or None."""
    down: str | None = None
    """Reason to hold because it does not answer yet, or None."""


def look(view: RolloutView, context: LineContext, lease: Lease) -> tuple[RolloutView, ServerState]:
    """Record the deaths that are over, and return the view with them and the next action.

    A death is over when both versions answer and the route in force leads to them. One that was over before the rollout began does not
    count. Without a shared process, nothing is done.
    """
    if not context.server.capabilities.sharing:
        return view, ServerState()
    champion, candidate = view.champion.tag, view.candidate.tag
    recorded, begun = {one.since for one in view.outages}, view.first.at
    known = cast("SharingServer", context.server).outages(candidate)
    new = [one for one in known if one.since not in recorded and (one.until is None or one.until >= begun)]
    stop = died_too_often([*view.outages, *new], champion, candidate)
    if not new:
        return view, ServerState(stop)
    if new[-1].until is None or not _answer(view, context):
        return view, ServerState(stop, is_down(champion, candidate))
    ends = [*(one.until for one in new[:-1]), context.clock.now()]
    for number, (one, until) in enumerate(zip(new, ends, strict=True), len(view.outages) + 1):
        view = append_to_rollout(view, context, lease, row_of("died", Died(since=one.since, until=until or one.since), str(number)))
    return view, ServerState(stop)


def _answer(view: RolloutView, context: LineContext) -> bool:
    """Return whether both versions run, and the route in force leads to where they run now."""
    route = context.router.read(context.line)
    running = {endpoint.tag: endpoint.url for endpoint in context.server.running()}
    wanted = {view.champion.tag, view.candidate.tag}
    if not wanted <= running.keys():
        return False
    return route is not None and all(backend.url == running.get(backend.tag) for backend in route.backends)
