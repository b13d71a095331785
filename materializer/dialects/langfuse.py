"""Decodes Langfuse's observations, one per line, as its API and its exports give them. Only model calls become traces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.contracts.data.decoding import Decoded, Limits, Row
from ratchet.contracts.errors import Rejected
from ratchet.contracts.loop.traces import CONSTANT
from ratchet.materializer.dialects.canonical.exchange import Record, finish_reason, has_stopped, is_stopped
from ratchet.materializer.dialects.conversation import is_generation
from ratchet.materializer.dialects.described import finish_attribute
from ratchet.materializer.dialects.otlp import PLACES_OF_CONSENT, answer_text, content_columns, content_of_call
from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.people.places import Fact
from ratchet.materializer.dialects.people.told import MAPPED, Told, consent_at, count_told, statement, third_party, told_in_record
from ratchet.materializer.dialects.values import (
    duration_ms,
    name,
    parse_json,
    slug,
    start_time,
    statement_columns,
    token_count,
)

_TYPES = ("SPAN", "EVENT", "GENERATION", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL")  # of Langfuse's API
_OUTER = ("ai.generateText", "ai.streamText", "ai.generateObject", "ai.streamObject")
"""Observations of the Vercel AI SDK that contain model calls."""


def is_observation(record: Any) -> bool:
    """Return whether a record is an observation of Langfuse."""
    return (
        isinstance(record, dict)
        and record.get("type") in _TYPES
        and isinstance(record.get("traceId"), str)
        and record.get("startTime") is not None
        and not {"messages", "response"} & record.keys()
    )


_OF_TRACE = frozenset(
    {"htmlPath", "totalCost", "latency", "observations", "scores", "public", "bookmarked", "sessionId", "userId", "tags", "release"}
    | {"environment", "projectId"}
)
"""Keys of a trace in Langfuse's API. Three of them identify it."""


def is_trace(record: Any) -> bool:
    """Return whether a record is a trace of Langfuse, which contains observations and is no model call itself."""
    return (
        isinstance(record, dict)
        and isinstance(record.get("id"), str)
        and record.get("timestamp") is not None
        and len(_OF_TRACE & record.keys()) >= 3
        and not {"type", "traceId", "startTime", "messages", "response"} & record.keys()
    )


def decode_observation(record: dict[str, Any], position: str, limits: Limits, into: Decoded) -> None:
    """Decode one observation into `into`. Raises Rejected if it cannot be read completely.

    Keys of `limits.mapping` name where the record has consent, region, confidentiality, slice and reference; without them, its metadata is
    read.
    """
    metadata = json_object(record.get("metadata"))
    attributes = Attributes.of_values(json_object(metadata.get("attributes")) | _tools(record, metadata))
    if not _is_model_call(record, attributes):
        into.skip("traces", "not_a_generation")
        return
    into.traces.append(_trace(record, attributes, limits, into) | {"position": position})


def _is_model_call(record: dict[str, Any], attributes: Attributes) -> bool:
    if record["type"] != "GENERATION" or record.get("name") in _OUTER:
        return False
    told = ("ai.operationId", "openinference.span.kind", "gen_ai.operation.name")
    return is_generation(attributes) if any(key in attributes for key in told) else True


def _tools(record: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the tools that Langfuse has found, as an attribute that its dialect reads last."""
    parameters = json_object(record.get("modelParameters"))
    places = (metadata.get("tools"), record.get("toolDefinitions"), parameters.get("tools"))
    found = next((tools for tools in places if tools), None)
    if isinstance(found, dict):  # name -> schema, often without the name
        found = [{"name": key, **(json_object(value) or {})} for key, value in found.items()]
    return {"langfuse.tools": found} if found else {}


def json_object(value: Any) -> dict[str, Any]:
    """Return an object, parsed if it is JSON as text; empty for anything else, because metadata only describes."""
    try:
        found = parse_json(value) if isinstance(value, str) and value.lstrip().startswith("{") else value
    except Rejected:
        return {}
    return found if isinstance(found, dict) else {}


def _trace(record: dict[str, Any], attributes: Attributes, limits: Limits, into: Decoded) -> Row:
    identity = name(record.get("id"))
    if identity is None:
        raise Rejected("missing_id", "the observation has no id")
    begin = start_time(record["startTime"], limits.now)

    def own(key: Fact) -> Any:
        return _mapped(record, limits.mapping[key], facts.value(key)) if key in limits.mapping else facts.value(key)

    facts = told_by_observation(record, limits)
    said = statement(facts, None, begin, limits, PLACES_OF_CONSENT)
    count_told(into, facts)
    agreed = said.given if said else None
    keep = agreed or (agreed is None and limits.assume_consent)
    failed = str(record.get("level")).upper() == "ERROR"
    call, ended = Record(attributes, (), record.get("input"), record.get("output")), finish_attribute(attributes)
    content = content_of_call(call, failed or is_stopped(ended), limits.placeholders) if keep else None
    usage = json_object(record.get("usageDetails")) or json_object(record.get("usage"))
    return {
        "id": identity,
        "time": begin,
        "origin": "traffic",
        "user": facts.value("user"),
        "session": facts.value("session"),
        "response_id": name(attributes.get("gen_ai.response.id")),
        **content_columns(content),
        "model": name(record.get("model", record.get("providedModelName"))),
        "model_version": None,
        "status": "error" if failed or is_stopped(ended) or has_stopped(content) else "ok",
        "finish_reason": finish_reason(ended, content),
        "latency_ms": duration_ms(begin, record.get("endTime")),
        "input_tokens": token_count(usage.get("input", record.get("promptTokens"))),
        "output_tokens": token_count(usage.get("output", record.get("completionTokens"))),
        "region": name(own("region")),
        "confidentiality": name(own("confidentiality")),
        "consent": agreed is True,
        **statement_columns(said),
        "reference": answer_text(own("reference"), limits) if keep else None,
        "slice": slug(own("slice")),
        "third_party": third_party(facts, None, limits, PLACES_OF_CONSENT),
    }


def told_by_observation(record: Mapping[str, Any], limits: Limits) -> Told:
    """Return what an observation says about its user: at its own keys, in its metadata and in that of its trace."""
    found = told_in_record(record)
    for key in ("consent", "consent_time"):
        if key in limits.mapping and (value := consent_at(record, limits.mapping[key])) is not None:
            if key == "consent":
                found.consents.append((MAPPED, value))
            else:
                found.times[MAPPED] = value
    return found


def _mapped(record: Mapping[str, Any], path: str, own: Any) -> Any:
    """Return the value at a path of the mapping. `own` is what the record says elsewhere, which decides over a text for all records."""
    if path.startswith(CONSTANT):
        return path.removeprefix(CONSTANT) if own in (None, "") else own
    return at_path(record, path)


def at_path(record: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted key; None if it is missing. Objects on the way may be JSON text."""
    value: Any = record
    for part in path.split("."):
        value = json_object(value).get(part)
    return value
