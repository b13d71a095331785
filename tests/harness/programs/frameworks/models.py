"""The model classes of smolagents and DSPy with OpenInference. People are named with `using_attributes`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tests.harness.programs.asked import BASE, failing
from tests.harness.programs.openinference import about
from tests.harness.programs.otel import provider
from tests.harness.script import EARLIER, MODEL, SCENES, SYSTEM


def _smolagents() -> Callable[[list[dict[str, Any]]], object]:
    from openinference.instrumentation.smolagents import SmolagentsInstrumentor
    from smolagents import OpenAIModel

    SmolagentsInstrumentor().instrument(tracer_provider=provider())
    model = OpenAIModel(model_id=MODEL, api_base=f"{BASE}/v1", api_key="unused", client_kwargs={"max_retries": 0})
    return lambda messages: model.generate(messages)


def _dspy() -> Callable[[list[dict[str, Any]]], object]:
    import dspy
    from openinference.instrumentation.dspy import DSPyInstrumentor

    DSPyInstrumentor().instrument(tracer_provider=provider())
    model = dspy.LM(f"openai/{MODEL}", api_base=f"{BASE}/v1", api_key="unused", cache=False, num_retries=0)
    return lambda messages: model(messages=messages)


if __name__ == "__main__":
    ask = _smolagents() if sys.argv[1] == "smolagents" else _dspy()
    for scene in SCENES.values():
        if scene.calls or scene.name in ("image", "json", "developer"):
            continue
        earlier = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), EARLIER, strict=True)]
        before = earlier if scene.name == "history" else []
        with failing(scene), about(scene):
            ask([{"role": "system", "content": SYSTEM}, *before, {"role": "user", "content": scene.prompt}])
