"""The few words that the rig itself says to its API server. Tests use the product's client or kubectl."""

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
    """Of the server at `url`, with the administrator's certificate in `folder`."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        self._trust.load_cert_chain(folder / "admin.crt", folder / "admin.key")

    def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        """The parsed answer; None for what is not there. Raises RigError with the server's own message."""
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
        return self.call("GET", path)

    def items(self, path: str) -> list[dict]:
        """Of a list; empty when its kind does not exist here."""
        return (self.get(path) or {}).get("items", [])

    def patch(self, path: str, change: object) -> Any:
        return self.call("PATCH", path, change, MERGE)

    def ready(self) -> bool:
        try:
            return self.get("/readyz") == "ok"
        except (RigError, OSError):
            return False


PATIENCE = 4
"""Waits are sized for a quiet machine, and take so many times as long on a busy one before what does not come counts as missing."""


def until(true: Callable[[], object], seconds: float, what: str, why: Callable[[], str] = lambda: "") -> None:
    """Waits until `true()`. Raises RigError that says `what` did not come and, from `why()`, the reason."""
    end = time.monotonic() + seconds * PATIENCE
    while not true():
        if time.monotonic() > end:
            raise RigError(f"{what} did not come within {seconds * PATIENCE:.0f} s\n{why()}".rstrip())
        time.sleep(0.1)
