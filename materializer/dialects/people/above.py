"""Refusals of spans that contain model calls: of an agent, a chain or a request, whose own record is no model call.

A refusal of such a span counts for the model calls below it in the same request. One in a place of the whole trace, such as
`langfuse.trace.metadata.consent`, counts for all model calls of the trace. It, and one of the trace's root, is also a statement about the
whole trace, which ingest applies to calls of other requests (`lake/storing/whole_traces.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.people.told import Told, merged, refuses, told, told_in_part

_OF_TRACE = ("langfuse.trace", "langsmith.trace", "mlflow.trace")


@dataclass(frozen=True)
class Above:
    """What the spans of a request refuse for the calls below them."""

    parents: Mapping[tuple[Any, Any], Any] = field(default_factory=dict)
    """Trace id and span id -> id of the parent."""
    of_spans: Mapping[tuple[Any, Any], Told] = field(default_factory=dict)
    of_traces: Mapping[Any, Told] = field(default_factory=dict)
    whole: Mapping[str, Any] = field(default_factory=dict)
    """Trace id -> start time of a span that is no model call and refuses for its whole trace: a root, or in a place of the trace."""
    read: Mapping[int, tuple[Attributes, Told]] = field(default_factory=dict)
    """Identity (`id`) of a span -> its attributes and what they say, where all of them could be read."""

    def added_to(self, own: Told, span: Mapping[str, Any]) -> Told:
        """Return what a span says, with the refusals of the spans above it."""
        if not self.of_spans and not self.of_traces:
            return own
        trace = span.get("traceId")
        found = [self.of_traces[trace]] if isinstance(trace, str) and trace in self.of_traces else []
        at, seen = span.get("parentSpanId"), set[Any]()
        while isinstance(at, str) and at and at not in seen:
            seen.add(at)
            if (trace, at) in self.of_spans:
                found.append(self.of_spans[trace, at])
            at = self.parents.get((trace, at))
        return merged(own, *found) if found else own


NOBODY = Above()
SILENT = Told()
"""What most spans refuse, and what a resource without attributes says: nothing. It is only read."""


def refused_above(spans: Iterable[tuple[Any, Any]], is_call: Callable[[Attributes], bool]) -> Above:
    """Return the refusals of the spans of a request. Each is given with its resource."""
    parents: dict[tuple[Any, Any], Any] = {}
    of_spans: dict[tuple[Any, Any], Told] = {}
    of_traces: dict[Any, Told] = {}
    refusing: dict[str, Any] = {}
    read: dict[int, tuple[Attributes, Told]] = {}
    for span, _ in spans:
        if not isinstance(span, dict) or not isinstance(span.get("traceId"), str) or not isinstance(span.get("spanId"), str):
            continue
        key = span["traceId"], span["spanId"]
        parents[key] = span.get("parentSpanId")
        try:
            attributes = Attributes(span.get("attributes"))
        except Rejected:  # the span has no attributes, so that it says nothing
            continue
        said, contains_calls, is_whole = _read(attributes, is_call)
        if is_whole:
            read[id(span)] = attributes, said
        if not said.consents and not contains_calls:  # most spans say nothing that could count for others
            continue
        whole = _refusals(said, lambda place: place.startswith(_OF_TRACE))
        if whole.consents:
            of_traces[key[0]] = merged(of_traces.get(key[0], Told()), whole)
        if contains_calls:
            of_spans[key] = _refusals(said, lambda _: True)
            if whole.consents or (of_spans[key].consents and not span.get("parentSpanId")):
                refusing.setdefault(key[0], span.get("startTimeUnixNano"))
    return Above(parents, {key: one for key, one in of_spans.items() if one.consents}, of_traces, refusing, read)


def _read(attributes: Attributes, is_call: Callable[[Attributes], bool]) -> tuple[Told, bool, bool]:
    """Return what a span says, whether this counts for the calls below it, and whether all attributes could be read.

    If an attribute cannot be read, the others still count, and the span is taken for one that contains calls.
    """
    is_whole = True
    try:
        said = told(attributes)
    except Rejected:
        said, is_whole = told_in_part(attributes), False
    try:
        return said, bool(said.consents) and not is_call(attributes), is_whole
    except Rejected:
        return said, True, is_whole


def _refusals(said: Told, counts: Callable[[str], bool]) -> Told:
    found = [(place, value) for place, value in said.consents if counts(place) and refuses(value)]
    if not found:
        return SILENT
    return Told(consents=found, times={place: said.times[place] for place, _ in found if place in said.times})


def told_by_resource(resource: Any) -> Told:
    """Return what a resource says. Raises Rejected `wrong_type` if its attributes are no list."""
    holder = resource.get("attributes") if isinstance(resource, dict) else None
    return told(Attributes(holder)) if holder else SILENT
