"""Notes in a rollout's stream when no server of the candidate can be reached (`flows/core/rollouts/candidate_server.py`)."""

from __future__ import annotations

from typing import cast

from ratchet.contracts.cycle import Lease
from ratchet.contracts.errors import Retryable
from ratchet.contracts.ports import ProbedServer
from ratchet.contracts.rows import Away, Died, row_of
from ratchet.flows.core.folds.rollout import RolloutView
from ratchet.flows.core.rollouts.candidate_server import away_too_often, is_away
from ratchet.flows.engine.context import LineContext, append_to_rollout
from ratchet.flows.engine.rollouts.shared_process import ServerState


def look(view: RolloutView, context: LineContext, lease: Lease) -> tuple[RolloutView, ServerState]:
    """Record that the candidate is away, or was away for a time. Return the view with that and the next action.

    The beginning is recorded, too, because the service may be on the machine that is lost. Before the first step, the server has to answer
    anyway. If the champion is away as well, the cause may be the network of the service, and nothing is known. Nothing is done without a
    server that can say this, and without a router that lets the champion answer meanwhile.
    """
    if not context.server.capabilities.probes or not context.router.attribution or not view.steps:
        return view, ServerState()
    tag, number, now = view.candidate.tag, str(len(view.outages) + 1), context.clock.now()
    held = ServerState(None, is_away(tag) if view.away is not None else None)
    server = cast("ProbedServer", context.server)
    try:
        found = server.newest_outage(view.candidate)
        is_away_now = found is not None and found.until is None
        if is_away_now and (champion := server.newest_outage(view.champion)) is not None and champion.until is None:
            return view, held
        was_away = view.away or (found.since if found is not None and not is_away_now else None)
        answers = found is not None or was_away is None or tag in {endpoint.tag for endpoint in server.running()}
    except Retryable:  # an API server that does not answer must not keep a harmful candidate in the route
        return view, held
    if found is not None and is_away_now and view.away is None:
        view = append_to_rollout(view, context, lease, row_of("away", Away(since=min(now, found.since)), number))
    elif not is_away_now and was_away is not None:
        begun = min(now, was_away)
        # A server that hung is ended by its kubelet at last, and then is not away, but does not answer either: nothing of that is excused.
        died = Died(since=begun, until=now if answers else begun)
        view = append_to_rollout(view, context, lease, row_of("died", died, number))
    stop = away_too_often(view.outages, view.away, tag)
    return view, ServerState(stop, is_away(tag) if is_away_now else None)
