"""A check of the gate that compares latencies."""

from __future__ import annotations

from ratchet.extend import CheckResult, EvalReport, GateSettings, Result


class Latency:
    """The candidate's 95th percentile must be at most `max_ratio` times the champion's, or at most `fast_ms`."""

    name = "latency"

    def __init__(self, _settings: GateSettings, max_ratio: float = 1.5, fast_ms: float = 200.0) -> None:
        self._max_ratio = max_ratio
        self._fast_ms = fast_ms

    def check(self, report: EvalReport) -> CheckResult:
        """Judge the two percentiles. Missing figures are inconclusive."""
        old, new = report.latency_ms.get("champion"), report.latency_ms.get("candidate")
        if old is None or new is None or not 0 < old < float("inf") or not 0 < new < float("inf"):
            return CheckResult(check=self.name, result=Result.INCONCLUSIVE, reason="the latencies are missing or invalid")
        good = new <= max(self._max_ratio * old, self._fast_ms)
        reason = f"95th percentile {new:.0f} ms, champion {old:.0f} ms; the limit is x{self._max_ratio:g}, or {self._fast_ms:g} ms"
        return CheckResult(check=self.name, result=Result.PASS if good else Result.FAIL, reason=reason)
