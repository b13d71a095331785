"""OpenLLMetry: openai, anthropic, langchain. People are named with `Traceloop.set_association_properties`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.langchain import LangchainInstrumentor
from traceloop.sdk import Traceloop
from traceloop.sdk.instruments import Instruments

from tests.harness.programs import asked, langchain
from tests.harness.programs.otel import anthropic_client, openai_client
from tests.harness.script import Scene


@contextlib.contextmanager
def about(scene: Scene) -> Iterator[dict[str, Any]]:
    """Name the people of a scene."""
    Traceloop.set_association_properties({"user_id": scene.user, "session_id": scene.session, "consent": scene.consent})
    yield {}


if __name__ == "__main__":
    which = sys.argv[1]
    exporter = OTLPSpanExporter(f"{asked.BASE}/v1/traces")
    Traceloop.init(
        app_name="harness",
        exporter=exporter,
        disable_batch=True,
        telemetry_enabled=False,
        instruments={Instruments[which.upper()]},
    )
    if which == "openai":
        asked.chat(openai_client(), about)
        asked.responses(openai_client(), about)
    elif which == "anthropic":
        asked.anthropic(anthropic_client(), about)
    else:
        LangchainInstrumentor().instrument()  # the SDK looks for the package langchain, of which only the core is used here
        langchain.all_calls(about)
