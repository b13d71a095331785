"""Whether a call succeeded, from the status words of applications, gateways and OpenTelemetry. A word that is not known is no success."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.tools import named
from ratchet.materializer.dialects.values import number

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


_STATUSES = ("status_code", "statusCode", "http_status", "http_status_code")
_SUCCEEDED = ("success", "succeeded", "successful", "ok")
_FAILED = ("failed", "is_error", "isError", "has_error")
_ERRORS = ("error", "error_message", "errorMessage", "error_str", "error_type", "error_code", "errorCode", "exception")
OUTCOMES = (*_STATUSES, *_SUCCEEDED, *_FAILED, *_ERRORS)
"""Keys beside `status` by which records say that a call failed."""


def record_has_failed(get: Callable[[str], Any]) -> bool:
    """Return whether the call of a record failed, by its status and by the `OUTCOMES` that it has. `get` returns the value of a key.

    Raises Rejected `unknown_status`.
    """
    error = next((value for key in _ERRORS if (value := get(key)) not in (None, "", [], {}, False, 0, "null", "None")), None)
    if has_failed(get("status"), error) or any(has_failed(get(key)) for key in _STATUSES):
        return True
    return any(_truth(get(key)) is False for key in _SUCCEEDED) or any(_truth(get(key)) is True for key in _FAILED)


def _truth(value: Any) -> bool | None:
    """Return a truth, also one that is text; None for any other value."""
    word = value.strip().lower() if isinstance(value, str) else None
    return value if isinstance(value, bool) else True if word == "true" else False if word == "false" else None


def _word(status: Any) -> str:
    if isinstance(status, float) and status == int(status):
        status = int(status)
    return "_".join(str(status)[:100].strip().lower().replace("-", " ").split()) if isinstance(status, str | int) else "another value"


def span_has_failed(status: Any, error_type: Any, http_status: Any = None, is_raised: bool = False) -> bool:
    """Return whether a span has failed.

    `status` is its OTLP status. While it is not set, the others count: `error_type`, its attribute `error.type`; `http_status`, the status
    of the reply; and whether the span has an event of an exception. Raises Rejected `unknown_status`.
    """
    code = status.get("code") if isinstance(status, Mapping) else None
    word = code.strip().upper().removeprefix("STATUS_CODE_") if isinstance(code, str) else code
    if word in (2, "2", "ERROR"):
        return True
    if word in (1, "1", "OK"):
        return False
    if word in (None, 0, "0", "", "UNSET") and not isinstance(word, bool):
        named_error = isinstance(error_type, str) and bool(error_type.strip())
        return named_error or is_raised or (number(http_status) or 0) >= 400
    raise Rejected("unknown_status", "the status code of the span is none of OpenTelemetry's")
