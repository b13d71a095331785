"""A minimal API client for the test cluster's own use. Tests of the product use the product's client or kubectl."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.rig.build import RigError

MERGE = "application/merge-patch+json"


class Api:
    """A client of the API server at `url` that uses the administrator's certificate in `folder`."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        self._trust.load_cert_chain(folder / "admin.crt", folder / "admin.key")

    def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        """Send a request and return the parsed answer, or None for a GET or DELETE of an object that does not exist.

        Raises RigError with the server's message for any other HTTP error.
        """
        data = None if body is None else json.dumps(body).encode()
        ask = urllib.request.Request(self._url + path, data, {"Content-Type": kind}, method=method)
        try:
            with urllib.request.urlopen(ask, timeout=30, context=self._trust) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            if error.code == 404 and method in ("GET", "DELETE"):
                return None
            raise RigError(f"{method} {path}: {error.code} {error.read().decode(errors='replace')[:500]}") from None
        return json.loads(text) if text.startswith(("{", "[")) else text

    def get(self, path: str) -> Any:
        """Return the object at `path`, or None if it does not exist."""
        return self.call("GET", path)

    def items(self, path: str) -> list[dict]:
        """Return the items of a list; empty if the cluster does not have this kind."""
        return (self.get(path) or {}).get("items", [])

    def patch(self, path: str, change: object) -> Any:
        """Apply a JSON merge patch to the object at `path`."""
        return self.call("PATCH", path, change, MERGE)

    def ready(self) -> bool:
        """Return whether the API server answers and is ready."""
        try:
            return self.get("/readyz") == "ok"
        except (RigError, OSError):
            return False


PATIENCE = 4
"""The factor on all wait limits. The limits in the code are sized for an idle machine; a busy machine needs longer."""


def until(true: Callable[[], object], seconds: float, what: str, why: Callable[[], str] = lambda: "") -> None:
    """Wait until `true()` holds, for at most `seconds` times PATIENCE.

    Raises RigError after that; the message contains `what` and the details from `why()`.
    """
    end = time.monotonic() + seconds * PATIENCE
    while not true():
        if time.monotonic() > end:
            raise RigError(f"timed out after {seconds * PATIENCE:.0f} s while waiting for {what}\n{why()}".rstrip())
        time.sleep(0.1)
