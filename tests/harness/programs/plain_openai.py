"""The client of OpenAI through Ratchet's router, which records each call. People are named in headers."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from tests.harness.programs import asked
from tests.harness.programs.otel import openai_client
from tests.harness.script import Scene


def flush() -> None:
    """Wait until the receiver has an export of each call, at most five seconds."""
    for _ in range(100):
        with urllib.request.urlopen(f"{asked.RECEIVER}/counts", timeout=10) as reply:
            counts = json.load(reply)
        if counts["exports"] >= counts["calls"]:
            return
        time.sleep(0.05)


@contextlib.contextmanager
def about(scene: Scene) -> Iterator[dict[str, Any]]:
    """Name the people of a scene."""
    headers = {"x-user-id": scene.user, "x-session-id": scene.session, "x-ratchet-consent": "true" if scene.consent else "false"}
    yield {"extra_headers": headers}


if __name__ == "__main__":
    asked.chat(openai_client(), about, flush)
