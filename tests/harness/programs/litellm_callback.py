"""LiteLLM: a callback that writes each StandardLoggingPayload. People are named with `user` and `metadata` of the request."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import litellm
from litellm.integrations.custom_logger import CustomLogger

from tests.harness.programs import asked
from tests.harness.script import MODEL, Scene

WRITTEN = threading.Semaphore(0)


class Written(CustomLogger):
    """Sends the payload of each call to the receiver, as a log of LiteLLM has it."""

    def _send(self, kwargs: dict[str, Any]) -> None:
        payload = kwargs.get("standard_logging_object")
        if payload is not None:
            data = json.dumps(payload, default=str, ensure_ascii=False).encode()
            request = urllib.request.Request(f"{asked.BASE}/litellm", data, {"content-type": "application/json"})
            urllib.request.urlopen(request, timeout=10).read()
        WRITTEN.release()

    def log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Send a successful call."""
        self._send(kwargs)

    def log_failure_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Send a failed call."""
        self._send(kwargs)


def flush() -> None:
    """Wait for the payload of the last call."""
    WRITTEN.acquire(timeout=3)


@contextlib.contextmanager
def about(scene: Scene) -> Iterator[dict[str, Any]]:
    """Name the people of a scene."""
    yield {
        "user": scene.user,
        "metadata": {"session_id": scene.session, "spend_logs_metadata": {"consent": scene.consent, "session_id": scene.session}},
    }


def completion(**given: Any) -> Any:
    """Make a call of the chat API."""
    more = {"api_base": f"{asked.BASE}/v1", "api_key": "unused", "num_retries": 0, "max_retries": 0}
    return litellm.completion(**given | {"model": f"openai/{MODEL}"}, **more)


def responses(**given: Any) -> Any:
    """Make a call of the Responses API."""
    more = {"litellm_metadata": given.pop("metadata")}
    return litellm.responses(**given | {"model": f"openai/{MODEL}"}, **more, api_base=f"{asked.BASE}/v1", api_key="unused", num_retries=0)


if __name__ == "__main__":
    litellm.callbacks = [Written()]
    litellm.suppress_debug_info = True
    made = SimpleNamespace(create=completion)
    asked.chat(SimpleNamespace(chat=SimpleNamespace(completions=made)), about, flush)
    asked.responses(SimpleNamespace(responses=SimpleNamespace(create=responses)), about, flush)
