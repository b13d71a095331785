"""Names the people of a scene in each span that begins meanwhile, for libraries that have no place of their own for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from opentelemetry.sdk.trace import SpanProcessor

from tests.harness.script import Scene

_NAMED: ContextVar[dict[str, Any]] = ContextVar("named")


@contextlib.contextmanager
def about(scene: Scene) -> Iterator[dict[str, Any]]:
    """Name the people of a scene for the calls inside."""
    token = _NAMED.set({"user.id": scene.user, "session.id": scene.session, "metadata.consent": scene.consent})
    try:
        yield {}
    finally:
        _NAMED.reset(token)


def name_in(span: Any) -> None:
    """Write the people of the current scene into a span."""
    for key, value in _NAMED.get({}).items():
        span.set_attribute(key, value)


class PeopleProcessor(SpanProcessor):
    """Names the people in each span of a provider."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Write the people into a span that begins."""
        name_in(span)
