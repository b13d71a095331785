"""A scorer that asks a judge over HTTP, as another distribution could provide it: one module, which the tests install.

If the judge returns no valid score for any reason, the scorer abstains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from typing import Any

from ratchet.contracts.data.records import Tier


class JudgedOverHttp:
    """Scores answers by a judge. The score is None if the judge is down, too slow, or returns an invalid reply."""

    name = "judged_over_http"
    tier = Tier.JUDGE
    needs = frozenset({"prompt", "answer"})

    def __init__(self, port: int, timeout: float = 120.0, at_once: int = 32) -> None:
        """Take the judge's `port` on this machine, the `timeout` per answer in seconds, and the number of requests `at_once`."""
        self.port, self.timeout, self.at_once = port, timeout, at_once

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Return one score per sample, None for an abstention."""
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
