"""A scorer that asks a judge over HTTP, as anyone's own distribution might bring it: one module, laid down where a test installs it.

What the judge does not say, for whatever reason, the scorer does not know: it abstains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from typing import Any

from contracts.records import Tier


class JudgedOverHttp:
    """The judge's score of each answer; None where it is down, slow, or not to be understood."""

    name = "judged_over_http"
    tier = Tier.JUDGE
    needs = frozenset({"prompt", "answer"})

    def __init__(self, port: int, timeout: float = 1.5, at_once: int = 32) -> None:
        """`port`: where the judge listens on this machine. `timeout`: seconds that an answer may take."""
        self.port, self.timeout, self.at_once = port, timeout, at_once

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        with ThreadPoolExecutor(self.at_once) as askers:
            return list(askers.map(self._ask, samples))

    def _ask(self, sample: Mapping[str, Any]) -> float | None:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        try:
            connection.request("POST", "/judge", json.dumps({key: sample[key] for key in sorted(self.needs)}))
            reply = connection.getresponse()
            score = float(json.loads(reply.read())["score"]) if reply.status == 200 else -1.0
        except (OSError, HTTPException, ValueError, TypeError, KeyError):
            return None
        finally:
            connection.close()
        return score if 0 <= score <= 1 else None
