"""Names people for libraries that have no place for them: an application adds attributes to each span."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from opentelemetry.sdk.trace import SpanProcessor

from tests.harness.script import Scene

PEOPLE: ContextVar[dict[str, Any] | None] = ContextVar("people", default=None)


class Named(SpanProcessor):
    """Adds the people of the scene to each span."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Set the attributes."""
        span.set_attributes(PEOPLE.get() or {})


@contextlib.contextmanager
def about(scene: Scene) -> Iterator[dict[str, Any]]:
    """Name the people of a scene."""
    PEOPLE.set({"user.id": scene.user, "session.id": scene.session, "metadata.consent": scene.consent})
    yield {}
