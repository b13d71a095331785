"""Notes in a rollout's stream when the candidate's server does not answer (`flows/core/rollouts/candidate_server.py`)."""

from __future__ import annotations

from typing import cast

from ratchet.contracts.cycle import Lease
from ratchet.contracts.ports import ProbedServer
from ratchet.contracts.rows import Away, Died, row_of
from ratchet.flows.core.folds.rollout import RolloutView
from ratchet.flows.core.rollouts.candidate_server import away_too_often, is_away
from ratchet.flows.engine.context import LineContext, append_to_rollout
from ratchet.flows.engine.rollouts.shared_process import SharedProcess


def look(view: RolloutView, context: LineContext, lease: Lease) -> tuple[RolloutView, SharedProcess]:
    """Record that the candidate's server has stopped to answer, or answers again. Return the view with that and the next action.

    The beginning is recorded, too, because the service may be on the machine that is lost. Before the first step, the server has to answer
    anyway. Without a server that can say this, nothing is done.
    """
    if not context.server.capabilities.probes or not view.steps:
        return view, SharedProcess()
    tag, number = view.candidate.tag, str(len(view.outages) + 1)
    answers = cast("ProbedServer", context.server).answers(view.candidate)
    if answers and view.away is not None:
        view = append_to_rollout(view, context, lease, row_of("died", Died(since=view.away, until=context.clock.now()), number))
    elif not answers and view.away is None:
        view = append_to_rollout(view, context, lease, row_of("away", Away(since=context.clock.now()), number))
    stop = away_too_often(view.outages, not answers, tag)
    return view, SharedProcess(stop, None if answers else is_away(tag))
