"""OpenTelemetry's own instrumentation of openai: content in log records, or in span attributes with the newest conventions.

It has no place for people. The program adds them with a span processor, as an application does.
"""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

from tests.harness.programs import asked
from tests.harness.programs.otel import openai_client, provider
from tests.harness.programs.people import Named, about

if __name__ == "__main__":
    spans = provider()
    spans.add_span_processor(Named())
    records = LoggerProvider()
    records.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(f"{asked.BASE}/v1/logs"), schedule_delay_millis=600_000))
    OpenAIInstrumentor().instrument(tracer_provider=spans, logger_provider=records)
    asked.chat(openai_client(), about, records.force_flush)
