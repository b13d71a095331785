"""Asks both versions of a rollout users' prompts again, one batch per tick, and records what the rewards of their answers show.

The row `mirror_intended` names the prompts before they are asked, and the row `mirrored` has the result. A batch that was interrupted is
asked again as far as it may still be used, and counts once. Rows contain keyed hashes and numbers, and neither ids nor texts. Requests
go to the model servers and not to the router, so they are no live traffic; answers are not stored.
"""

from __future__ import annotations

from datetime import timedelta

from ratchet.contracts.cycle import Lease
from ratchet.contracts.errors import RatchetError, Retryable
from ratchet.contracts.loop import RolloutSettings
from ratchet.contracts.mirror import MirrorAsk, Mirrored, MirrorOutcome, MirrorPrompts
from ratchet.contracts.rows import MirrorBegun, MirrorEnd, row_of
from ratchet.contracts.serving import StepJudgement
from ratchet.flows.core.folds.rollout import RolloutView
from ratchet.flows.core.rollouts.mirror import Batch, batches, is_wanted, left, turns
from ratchet.flows.core.rollouts.rollout import largest_concurrent
from ratchet.flows.engine.context import LineContext, append_to_rollout
from ratchet.flows.engine.effects import loading


def ask_batch(view: RolloutView, settings: RolloutSettings, judgement: StepJudgement | None, context: LineContext, lease: Lease) -> None:
    """Complete the open batch, or ask a new one, while the rollout waits for more pairs.

    If prompts cannot be read, asked or scored, nothing is recorded, and the next tick tries again. The step then waits, and ends after
    `rollout.max_seconds` at the latest. Raises Permanent if the settings or files of the line must be corrected.
    """
    known = batches(view.mirrored)
    if not view.steps or not is_wanted(settings, judgement, view.steps[-1].index, largest_concurrent(settings), known):
        return
    batch = known[-1] if known and known[-1].result is None else None
    try:
        found = _prompts(view, settings, known, batch, context)
        if batch is None:
            if found is None or not found.prompts:
                return
            view, batch = _begin(view, len(known) + 1, found, context, lease)
        outcomes = _ask(view, found, context) if found is not None and found.secret == batch.secret else []
    except Exception as error:
        if isinstance(error, RatchetError) and not isinstance(error, Retryable):
            raise
        reason = str(error) if isinstance(error, Retryable) else f"they raised {type(error).__name__}"  # a message may quote a user
        context.progress(f"mirrored prompts wait: {reason}", 0, 0)
        return
    append_to_rollout(view, context, lease, row_of("mirrored", MirrorEnd(mirrored=_result(outcomes)), str(batch.number)))


def _prompts(
    view: RolloutView, settings: RolloutSettings, known: list[Batch], batch: Batch | None, context: LineContext
) -> MirrorPrompts | None:
    """Return the prompts of the open batch that may still be used, or those of a new batch. None if the rollout has no more turns."""
    window = (view.steps[0].since, context.clock.now() - timedelta(seconds=settings.maturity))
    if batch is not None:
        asks = MirrorAsk(limit=len(batch.prompts), only=tuple(key for key, _ in batch.prompts))
    elif more := left(known, settings):
        asks = MirrorAsk(limit=more, asked=frozenset(key for one in known for key, _ in one.prompts), turns=dict(turns(known)))
    else:
        return None
    versions = (view.champion.tag, view.candidate.tag) if context.router.attribution else ()
    return context.datasets.mirror_prompts(view.id, versions, window, asks)


def _begin(view: RolloutView, number: int, found: MirrorPrompts, context: LineContext, lease: Lease) -> tuple[RolloutView, Batch]:
    prompts = tuple((one.key, one.person) for one in found.prompts)
    begun = row_of("mirror_intended", MirrorBegun(secret=found.secret, prompts=prompts), str(number))
    view = append_to_rollout(view, context, lease, begun)
    return view, Batch(number, found.secret, prompts)


def _ask(view: RolloutView, found: MirrorPrompts, context: LineContext) -> list[tuple[str, MirrorOutcome]]:
    """Return (person, outcome) of each prompt. Raises Retryable if a server is not available."""
    if not found.prompts:
        return []
    if missing := loading(context, view.champion, view.candidate):
        raise Retryable(f"no server of {' and '.join(sorted(missing))} answers")
    client = context.mirror_client or context.client
    champion, candidate = (client(context.server.ensure(version)) for version in (view.champion, view.candidate))
    outcomes = context.evaluator.mirror(found.prompts, champion, candidate, context.progress)
    return [(one.person, outcome) for one, outcome in zip(found.prompts, outcomes, strict=True)]


def _result(outcomes: list[tuple[str, MirrorOutcome]]) -> Mirrored:
    return Mirrored(
        asked=len(outcomes),
        failed=sum(one.failed for _, one in outcomes),
        unscored=sum(one.difference is None and not one.failed for _, one in outcomes),
        pairs=tuple((person, one.difference) for person, one in outcomes if one.difference is not None),
    )
