"""MLflow Tracing with autologging of openai, exported by OTLP: `native` in MLflow's attributes, `genai` in those of OpenTelemetry.

People are named by a processor of spans.
"""

from __future__ import annotations

import os
import sys

from tests.harness.programs import asked

_FORM = sys.argv[1]
os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"{asked.BASE}/v1/traces"
os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
if _FORM == "genai":
    os.environ["MLFLOW_ENABLE_OTEL_GENAI_SEMCONV"] = "true"

import mlflow  # noqa: E402
from mlflow.tracing import provider as tracing  # noqa: E402

from tests.harness.programs.frameworks.people import about, name_in  # noqa: E402
from tests.harness.programs.otel import openai_client  # noqa: E402


def flush() -> None:
    """Send the spans that have ended."""
    tracing.provider.get().force_flush()


if __name__ == "__main__":
    mlflow.tracing.configure(span_processors=[name_in])
    mlflow.openai.autolog()
    asked.chat(openai_client(), about, flush)
    # In the attributes of OpenTelemetry, MLflow writes an item of reasoning as an empty message of the user, which is quarantined.
    asked.responses(openai_client(), about, flush, leave=("reasoned_tool",) if _FORM == "genai" else ())
