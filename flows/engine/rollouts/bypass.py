"""Keeps users with the champion while the router of a line is down, if the router can be bypassed."""

from __future__ import annotations

from typing import cast

from ratchet.contracts.ports import BypassingRouter
from ratchet.flows.engine.context import LineContext


def bypass(context: LineContext) -> list[str]:
    """Put the bypass of the router in force or withdraw it, if it is time. Return one text if that was done.

    It needs no lease: the router decides by what it sees, and a repeated call changes nothing.
    """
    if not getattr(context.router, "can_bypass", False):
        return []
    champion = context.line_view().champion
    endpoint = next((one for one in context.server.running() if champion is not None and one.tag == champion.tag), None)
    done = "" if endpoint is None else cast(BypassingRouter, context.router).bypass(endpoint)
    return [done] if done else []
