"""The findings of `ratchet check` about the first records of each source: who they belong to, and what is doubtful in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.contracts.errors import RatchetError
from ratchet.flows.cli.setup.finding import Finding

if TYPE_CHECKING:
    from ratchet.contracts.ports import TraceSource
    from ratchet.flows.engine.context import LineContext


def sampled(context: LineContext) -> list[Finding]:
    """Return the findings about the first 300 records of each source. Records that a receiver has already ingested are not read again."""
    local = {source.name for source in context.loop.sources if source.kind in ("otlp", "jsonl", "receiver")}  # others may be remote
    return [finding for source in context.sources if source.name in local for finding in _of_source(context, source)]


def _of_source(context: LineContext, source: TraceSource) -> list[Finding]:
    from ratchet.flows.core.data_notes import doubtful_scorers
    from ratchet.materializer.dialects.admission import Admission
    from ratchet.materializer.dialects.screening.sample import limits_of, look
    from ratchet.materializer.labels.silent_scorers import doubtful_at_a_look
    from ratchet.materializer.privacy.masking import Masker
    from ratchet.rewards.scorer_set import build_scorer_set

    name = str(source.name)
    limits = limits_of(context.loop, name, int(context.clock.now().timestamp() * 1_000_000))
    masker = Masker(context.loop.privacy.model_copy(update={"ner": None}))  # the models of names are slow to load
    try:
        seen = look(source.batches(), limits, admission=Admission(mask=masker.mask))
    except RatchetError:  # `_sources` reports a path that does not exist
        return []
    shares = seen.shares
    if not shares[0].read:
        return []
    found: list[Finding] = [("note", "records", f"{name}: {share.sentence}") for share in shares]
    consent = next(share for share in shares if share.fact == "consent")
    if context.loop.governance.consent == "required" and not consent.calls:
        found.append(("warning", "records", f"{name}: no call states consent, so no content is kept; see `consent_places` and `mapping`"))
    if seen.without_tools:
        found.append(("note", "records", f"{name}: {seen.without_tools:,} conversations call tools, but their records name no tools"))
    if seen.repeated is not None:
        found.append(("warning", "records", f"{name}: {seen.repeated.sentence}"))
    if (opening := seen.opening(context.loop.holdout.skipped)) is not None:
        found.append(("warning", "records", f"{name}: {opening}"))
    doubtful = doubtful_at_a_look(build_scorer_set(context.loop.rewards), seen.decoded.traces)
    found += [("warning", "reward", f"{name}: {text}") for text in doubtful_scorers(doubtful)]
    return found
