"""The findings of `ratchet check` about a line's teacher. Nothing is sent to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.loop import PrivacySettings
from ratchet.flows.cli.setup.finding import Finding

if TYPE_CHECKING:
    from ratchet.flows.engine.context import LineContext


def teacher(context: LineContext) -> list[Finding]:
    """Say what may be sent to the teacher, under which terms, and what it costs at most; or what keeps it from being asked."""
    from ratchet.contracts.data.teaching import cost_of
    from ratchet.flows.core.asking.teaching import left
    from ratchet.flows.engine.asking.teaching import teacher_view
    from ratchet.runtime.secrets.api_key import api_key

    settings = context.loop.teacher
    if settings is None:
        return []
    now = context.clock.now()
    budget = left(settings, teacher_view(context), now)
    most = min(settings.max_cost, budget.cost)
    found: list[Finding] = [
        ("ok", "teacher", f"{settings.model} in {settings.region} at {settings.url}; terms accepted by {settings.terms.accepted_by}"),
        (
            "note",
            "teacher",
            f"at most {budget.requests:,} requests and {most:g} {settings.currency} are left of {settings.period_days:g} days; an answer "
            f"costs at most {cost_of(settings, 0, settings.max_tokens):.4f} {settings.currency}, its question comes on top",
        ),
    ]
    try:
        key = api_key("teacher", settings.key_env, settings.key_file)
    except ConfigError as error:
        found.append(("warning", "teacher", f"{error}; until then, cycles go on without it"))
    else:
        found += [] if key else [("note", "teacher", "requests have no API key")]
    if settings.terms.accepted_on > now.date():
        found.append(("error", "teacher", f"teacher.terms.accepted_on = {settings.terms.accepted_on} is in the future"))
    if settings.consent == "obtained":
        found.append(("warning", "teacher", "the consent of users to sending prompts to a third party is said to be obtained elsewhere"))
    unmasked = sorted(set(PrivacySettings().mask) - set(context.loop.privacy.mask))
    if unmasked:
        found.append(("warning", "teacher", f"prompts are sent with personal data of the kinds {', '.join(unmasked)}"))
    if context.loop.privacy.ner is None:
        found.append(("note", "teacher", "names of people are not masked in what is sent, because privacy.ner is not set"))
    if not settings.measure and not getattr(context.rewards, "proves_alone", lambda: False)():
        found.append(
            ("warning", "teacher", "no answer can count: no verifiable reward works without a reference, and teacher.measure is 0")
        )
    return found
