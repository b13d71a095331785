"""The OpenTelemetry SDK of the programs: each span and log record is sent at once."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.harness.programs.asked import BASE


def provider() -> TracerProvider:
    """Return a provider that sends each span to the receiver when it ends, and make it the global one."""
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{BASE}/v1/traces")))
    trace.set_tracer_provider(made)
    return made


def openai_client() -> Any:
    """Return a client of the model server that does not repeat failed requests."""
    import openai

    return openai.OpenAI(base_url=f"{BASE}/v1", api_key="unused", max_retries=0)


def anthropic_client() -> Any:
    """Return a client of the model server that does not repeat failed requests."""
    import anthropic

    return anthropic.Anthropic(base_url=BASE, api_key="unused", max_retries=0)
