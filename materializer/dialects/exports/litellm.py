"""Decodes calls as LiteLLM logs them (StandardLoggingPayload): one JSON object per call.

Calls without a prompt and an answer, such as embeddings, are skipped. So are answers from LiteLLM's cache: no model has given them for this
request, and the answer was logged before, when a model gave it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.jsonl import JsonlDialect, decode_record
from ratchet.materializer.dialects.langfuse import json_object
from ratchet.materializer.dialects.values import consent

_MARKS = frozenset({"litellm_call_id", "call_type", "model_parameters", "hidden_params", "response_cost", "model_map_information"})
"""Keys that only LiteLLM writes. Three of them identify its payload."""
_CHAT = ("completion", "responses", "anthropic_messages", "generate_content")
"""Parts of `call_type` of the calls that have a prompt and an answer. Embeddings, pictures and moderations have none."""
_OWN = (
    "consent",
    "consent_time",
    "consent_third_party",
    "region",
    "confidentiality",
    "slice",
    "reference",
    "feedback",
    "correction",
    "signals",
)
"""Keys of Ratchet that the caller may send as metadata of the request."""


class LitellmDialect(JsonlDialect):
    """Payloads of LiteLLM. Batches in the format litellm name this dialect."""

    name = "litellm"

    def decode(self, record: Any, position: str, limits: Limits, into: Decoded) -> None:
        """Decode one payload into `into`. Raises Rejected `wrong_type` for another record."""
        if not is_payload(record):
            raise Rejected("wrong_type", "the record is no StandardLoggingPayload of LiteLLM")
        if not is_model_call(record):
            into.skip("traces", "not_a_generation")
        elif is_from_cache(record):
            into.skip("traces", "cache_hit")
        else:
            decode_record(record_of(record), position, replace(limits, mapping={}), into)


def is_payload(record: Any) -> bool:
    """Return whether a record is a StandardLoggingPayload of LiteLLM."""
    return isinstance(record, dict) and len(_MARKS & record.keys()) >= 3


def is_model_call(payload: dict[str, Any]) -> bool:
    """Return whether the payload is a call with a prompt and an answer. Without `call_type`, it is taken for one."""
    kind = payload.get("call_type")
    return not isinstance(kind, str) or not kind or any(part in kind for part in _CHAT)


def is_from_cache(payload: dict[str, Any]) -> bool:
    """Return whether the answer comes from LiteLLM's cache, so that no model has given it for this request."""
    return payload.get("cache_hit") is True or str(payload.get("cache_hit")).lower() == "true"


def record_of(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a payload.

    The session is `trace_id`. The user is `end_user`, or the `user` of the request, not the owner of the API key, which is a service. The
    costs are left out. A call whose status is not success counts as failed. The content that LiteLLM has replaced by a placeholder is left
    as it is.
    """
    metadata = json_object(payload.get("metadata"))
    hidden = json_object(payload.get("hidden_params"))
    parameters = json_object(payload.get("model_parameters"))
    reply = payload.get("response")
    begin, end = payload.get("startTime"), payload.get("endTime")
    succeeded = payload.get("status") in ("success", None, "")
    record = {
        "id": payload.get("id") or payload.get("litellm_call_id"),
        "timestamp": begin,
        "user_id": payload.get("end_user") or metadata.get("user_api_key_end_user_id") or _user_of(parameters),
        "session_id": payload.get("session_id") or payload.get("trace_id"),
        "messages": _messages(payload.get("messages"), parameters),
        "tools": parameters.get("tools") or parameters.get("functions"),
        "response": reply if succeeded else None,
        "model": payload.get("model"),
        "latency_ms": _milliseconds(begin, end),
        "input_tokens": payload.get("prompt_tokens"),
        "output_tokens": payload.get("completion_tokens"),
        "finish_reason": _finish(reply),
        "response_id": reply.get("id") if isinstance(reply, dict) else None,
        "status": "ok" if succeeded else "failed",
        "metadata": metadata or None,  # a refusal counts from every key
    }
    return {key: value for key, value in (record | _stated(metadata, hidden)).items() if value is not None}


def _user_of(parameters: dict[str, Any]) -> Any:
    """Return the user that the parameters of a request name, in the keys of OpenAI's or Anthropic's API."""
    return parameters.get("user") or parameters.get("safety_identifier") or json_object(parameters.get("metadata")).get("user_id")


def with_signals(payload: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a payload with the signals that its metadata states under keys of the caller. `names` is key -> signal.

    A key states its signal by `true` or `1`. The signals are added to the list `signals` of the request's metadata.
    """
    metadata = json_object(payload.get("metadata"))
    requester = json_object(metadata.get("requester_metadata"))
    places = (requester, json_object(metadata.get("spend_logs_metadata")), metadata)
    found = [signal for key, signal in names.items() if any(consent(place.get(key)) is True for place in places)]
    if not found:
        return payload
    stated: Any = next((place["signals"] for place in places if place.get("signals") is not None), [])
    listed = stated if isinstance(stated, list) else [stated]
    signals = [*listed, *(one for one in found if one not in listed)]
    return payload | {"metadata": metadata | {"requester_metadata": requester | {"signals": signals}}}


def _stated(metadata: dict[str, Any], hidden: dict[str, Any]) -> dict[str, Any]:
    """Return what the caller states about the request. A refusal of consent in any place counts."""
    places = [json_object(metadata.get(key)) for key in ("requester_metadata", "spend_logs_metadata", "user_api_key_metadata")]
    places += [metadata, json_object(hidden.get("metadata"))]
    found = {key: next((place[key] for place in places if place.get(key) is not None), None) for key in _OWN}
    if any(consent(place.get("consent")) is False for place in places):
        found["consent"] = False
    return found


def _messages(messages: Any, parameters: dict[str, Any]) -> Any:
    """Return the prompt. Instructions of the Responses API and the system text of Anthropic's API stand beside the messages."""
    system = parameters.get("instructions") or parameters.get("system")
    if not system:
        return messages
    items = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    return [{"role": "system", "content": system}, *items] if isinstance(items, list) else items


def _milliseconds(begin: Any, end: Any) -> float | None:
    numbers = isinstance(begin, int | float) and isinstance(end, int | float)
    return round((end - begin) * 1000, 3) if numbers and end >= begin else None


def _finish(reply: Any) -> Any:
    choices = reply.get("choices") if isinstance(reply, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first.get("finish_reason") if isinstance(first, dict) else None
