"""Whether a call succeeded, from the status words of applications, gateways and OpenTelemetry. A word that is not known is no success."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.tools import named

_SUCCESS = frozenset(
    (
        "ok", "okay", "success", "succeeded", "successful", "complete", "completed", "done", "finished", "passed", "pass", "true",
        "unset", "default", "none", "null", "stop", "end_turn", "status_code_ok", "status_code_unset",
    )
)  # fmt: skip
_FAILURE = frozenset(
    (
        "error", "err", "errored", "failed", "failure", "fail", "false", "exception", "crashed", "fatal", "critical", "invalid",
        "refused", "timeout", "timed_out", "timedout", "deadline_exceeded", "cancelled", "canceled", "aborted", "abort", "interrupted",
        "killed", "rejected", "denied", "forbidden", "unauthorized", "unauthenticated", "permission_denied", "blocked", "content_filter",
        "filtered", "unavailable", "overloaded", "rate_limited", "ratelimited", "rate_limit", "throttled", "resource_exhausted",
        "expired", "internal", "internal_error", "server_error", "client_error", "bad_request", "not_found", "unknown_error",
        "incomplete", "partial", "status_code_error", "unsuccessful", "disconnected", "dropped", "terminated",
    )
)  # fmt: skip


def has_failed(status: Any, error: Any = None) -> bool:
    """Return whether a call failed. `status` is a word, an HTTP status or a boolean; `error` is what the record has as its error.

    Without a status, a call has failed if it has an error. Raises Rejected `unknown_status` for a status that is not known, because a
    failed call must not count as a good answer.
    """
    if isinstance(status, Mapping):
        keys = ("status", "code", "status_code", "state")
        status = next((status[key] for key in keys if status.get(key) not in (None, "")), None if not status else "an object")
    if status is None or (isinstance(status, str) and not status.strip()):
        return error not in (None, "", [], {}, False, 0, "null", "None")
    if isinstance(status, bool):
        return not status
    word = _word(status)
    if word.isdecimal() and len(word) == 3 and 100 <= int(word) <= 599:
        return not 200 <= int(word) <= 299
    if word in _SUCCESS:
        return False
    if word in _FAILURE or word.endswith(("error", "exception", "_failed", "_failure")):
        return True
    raise Rejected("unknown_status", f"the status {named(word)} is neither known as a success nor as a failure")


def _word(status: Any) -> str:
    if isinstance(status, float) and status == int(status):
        status = int(status)
    return "_".join(str(status)[:100].strip().lower().replace("-", " ").split()) if isinstance(status, str | int) else "another value"


def span_has_failed(status: Any, error_type: Any) -> bool:
    """Return whether a span has failed.

    `status` is its OTLP status; `error_type` is its attribute `error.type`, which counts while the status is not set. Raises Rejected
    `unknown_status`.
    """
    code = status.get("code") if isinstance(status, Mapping) else None
    word = code.strip().upper().removeprefix("STATUS_CODE_") if isinstance(code, str) else code
    if word in (2, "2", "ERROR"):
        return True
    if word in (1, "1", "OK"):
        return False
    if word in (None, 0, "0", "", "UNSET") and not isinstance(word, bool):
        return isinstance(error_type, str) and bool(error_type.strip())
    raise Rejected("unknown_status", "the status code of the span is none of OpenTelemetry's")
