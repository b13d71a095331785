"""Tests of tool results that report an error."""

from __future__ import annotations

import pytest

from ratchet.materializer.labels.signals.tool_errors import reports_error


@pytest.mark.parametrize(
    "result",
    [
        *('{"error": "no such order"}', '{"is_error": true, "content": "x"}', '{"isError": true}', '{"success": false}', '{"ok": false}'),
        *('{"status": "failed"}', '{"errors": [{"message": "m"}]}', "Error: no such file", "Traceback (most recent call last):\n  File"),
        "Invalid arguments for tool lamp",
    ],
)
def test_errors_are_recognised(result: str) -> None:
    assert reports_error(result)


@pytest.mark.parametrize(
    "result",
    [
        *('{"error": null, "total": 3}', '{"errors": []}', '{"status": "ok"}', '{"success": true}', "", "{broken", '[{"error": "x"}]'),
        *("The error rate is 3 %", "errors found: 0", "No error.", '{"text": "error: none"}', '{"error_rate": 0.5}', '{"status": 200}'),
    ],
)
def test_other_results_are_no_errors(result: str) -> None:
    assert not reports_error(result)
