"""Logfire with its own instrumentation of openai. People are named with baggage."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import logfire

from tests.harness.programs import asked
from tests.harness.programs.otel import openai_client
from tests.harness.script import Scene


@contextlib.contextmanager
def about(scene: Scene) -> Iterator[dict[str, Any]]:
    """Name the people of a scene."""
    named = {"user.id": scene.user, "session.id": scene.session, "metadata.consent": str(scene.consent).lower()}
    with logfire.set_baggage(**named):
        yield {}


if __name__ == "__main__":
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = asked.BASE
    logfire.configure(send_to_logfire=False, console=False, inspect_arguments=False)
    logfire.instrument_openai()
    asked.chat(openai_client(), about, logfire.force_flush)
    asked.responses(openai_client(), about, logfire.force_flush)
