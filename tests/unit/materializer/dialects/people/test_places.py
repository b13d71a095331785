"""Every place of the table: a refusal is honoured, a consent counts only where the loop file says so, users and sessions are found."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.decoding import Decoded, Limits, Row
from ratchet.materializer.dialects.decode import decode
from ratchet.materializer.dialects.people.places import ALL, DESCRIBED, PLACES, PLAIN, FactPlace, meaning
from ratchet.materializer.dialects.people.told import shares
from ratchet.materializer.dialects.statement import STATED
from tests.unit.materializer.records import T0, attribute, batch, span, spans

ASSUMED = Limits(now=T0 // 1000 + 10**12, assume_consent=True)
REQUIRED = replace(ASSUMED, assume_consent=False)
SECRET = "the text of a person"
SPELLINGS = {"user": ("user_id", "userId", "user.id", "USER-ID", "end_user"), "session": ("session_id", "sessionId", "thread_id")}
BOUND = [place for place in PLACES if place.name != PLAIN]


def kvlist(values: dict[str, Any]) -> dict[str, Any]:
    return {"kvlistValue": {"values": [attribute(key, value) for key, value in values.items()]}}


def forms(place: FactPlace, name: str, value: Any) -> Iterator[dict[str, Any]]:
    """The attributes by which a library can write a value in a place: flat, as JSON text, as an object, printed by Python."""
    if place.name == PLAIN:
        yield attribute(name, value)
        return
    yield attribute(f"{place.name}.{name}", value)
    yield attribute(place.name, json.dumps({name: value}))
    if place.name != "llm.invocation_parameters":  # tools are read from it, so it must be JSON
        yield attribute(place.name, repr({name: value}))
    yield {"key": place.name, "value": kvlist({name: value})}


def traced(*more: dict[str, Any], limits: Limits = ASSUMED, resource: list[Any] | None = None, plain: bool = False) -> tuple[Row, Decoded]:
    item = span(1, SECRET, SECRET, metadata__consent=None, user__id=None)
    item["attributes"] += list(more)
    request = spans(item)
    if resource is not None:
        request["resourceSpans"][0]["resource"] = {"attributes": resource}
    found = decode(batch(request), limits)
    assert [bad.reason for bad in found.bad] == []
    [row] = found.traces
    return row, found


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
@pytest.mark.parametrize("value", [False, "false", "no", 0, "False"])
def test_a_refusal_is_honoured_from_every_place(place: FactPlace, value: Any) -> None:
    for form in forms(place, "consent", value):
        agreed = attribute("ai.telemetry.metadata.consent" if place.name == "metadata" else "metadata.consent", True)
        for row, _ in (traced(form), traced(resource=[form]), traced(form, agreed)):
            assert (row["messages"], row["answer"], row["consent"]) == (None, None, False), form
            assert not row[STATED].given
            assert SECRET not in json.dumps({key: row[key] for key in row if isinstance(row[key], str)})


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_a_consent_counts_only_from_the_places_of_the_loop_file(place: FactPlace) -> None:
    named = replace(REQUIRED, consent_places=(place.name,))
    unnamed = replace(REQUIRED, consent_places=("elsewhere",))
    for form in forms(place, "consent", True):
        assert traced(form, limits=named)[0]["answer"] == SECRET, form
        assert traced(form, limits=unnamed)[0]["answer"] is None, form
        assert (traced(form, limits=REQUIRED)[0]["answer"] is not None) == (place.name == "metadata"), form


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
@pytest.mark.parametrize("fact", ["user", "session"])
def test_users_and_sessions_are_found_in_every_place(place: FactPlace, fact: str) -> None:
    for name in SPELLINGS[fact]:
        for form in forms(place, name, "one-7"):
            for row, found in (traced(form), traced(resource=[form])):
                assert row[fact] == "one-7", form
                told = {share.fact: share for share in shares(found.told)}[fact]
                assert (told.calls, told.read, sum(told.places.values())) == (1, 1, 1)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_a_region_a_slice_and_a_label_are_read_where_they_mean_it(place: FactPlace) -> None:
    for fact in ("region", "slice", "confidentiality", "reference"):
        for form in forms(place, fact, "north"):
            assert traced(form)[0][fact] == ("north" if fact in place.facts else None), form


@pytest.mark.parametrize("place", [place for place in PLACES if "reference" in place.facts], ids=lambda place: place.name)
def test_a_right_answer_may_be_an_object_and_nothing_inside_of_it_describes_the_call(place: FactPlace) -> None:
    answer = {"total": 3, "user": "ada"}
    for form in (
        attribute(f"{place.name}.reference", json.dumps(answer)),
        attribute(place.name, json.dumps({"reference": answer})),
        attribute(place.name, json.dumps({"reference": json.dumps(answer)})),
        {"key": place.name, "value": kvlist({"reference": json.dumps(answer)})},
    ):
        row, _ = traced(form)
        assert json.loads(row["reference"]) == answer, form
        assert (row["user"], row["answer"]) == (None, SECRET), form


@pytest.mark.parametrize("place", [place for place in PLACES if "reference" in place.facts], ids=lambda place: place.name)
def test_a_refusal_inside_of_a_right_answer_counts(place: FactPlace) -> None:
    answer = {"text": "three", "consent": False}
    for form in (
        attribute(place.name, json.dumps({"reference": answer})),
        attribute(place.name, json.dumps({"reference": json.dumps(answer)})),
    ):
        row, _ = traced(form)
        assert (row["answer"], row["reference"]) == (None, None), form


def test_a_reference_is_not_read_from_a_plain_key() -> None:
    assert "reference" in ALL - DESCRIBED
    assert traced(attribute("reference", "order 7"))[0]["reference"] is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("some.library.of.tomorrow.consent", False),
        ("app.Consent", "no"),
        ("user_consent", False),
        ("metadata.hasConsent", "false"),
        ("metadata.training-consent", 0),
        ("metadata", json.dumps({"app": {"deep": {"consent": False}}})),
        ("langfuse.trace.metadata", json.dumps({"customer": json.dumps({"consent": "denied"})})),
    ],
)
def test_a_refusal_is_honoured_from_places_that_nobody_has_listed(key: str, value: Any) -> None:
    assert traced(attribute(key, value))[0]["messages"] is None


UNREADABLE: list[Any] = [{"intValue": "x"}, {"boolValue": 7}, {"doubleValue": "NaN"}, {"colour": "red"}, 7]


def raw_object(**values: Any) -> dict[str, Any]:
    """An OTLP object with raw values."""
    return {"kvlistValue": {"values": [{"key": key, "value": value} for key, value in values.items()]}}


@pytest.mark.parametrize("value", UNREADABLE, ids=str)
def test_a_consent_inside_of_an_object_that_cannot_be_read_is_a_refusal(value: Any) -> None:
    for inner in (
        raw_object(consent=value),
        raw_object(app=raw_object(consent=value)),
        {"arrayValue": {"values": [raw_object(consent=value)]}},
    ):
        for key in ("metadata", "langfuse.trace.metadata"):
            assert traced({"key": key, "value": inner})[0]["messages"] is None, (key, inner)
    assert traced({"key": "metadata", "value": raw_object(consent={}, colour=value)})[0]["messages"] is not None


@pytest.mark.parametrize("text", ['{"consent": false', '{"app": {"user_consent": fal', "{'consent': Fal", '{\\"consent\\": false'])
def test_a_consent_in_the_text_of_an_object_that_was_cut_off_is_a_refusal(text: str) -> None:
    assert traced(attribute("metadata", text))[0]["messages"] is None
    assert traced(attribute("metadata", '{"colour": "re'))[0]["messages"] is not None


@pytest.mark.parametrize("key", ["llm.invocation_parameters", "model_parameters", "ai.prompt.tools"])
def test_a_parameter_of_a_tool_with_the_name_consent_is_no_statement(key: str) -> None:
    schema = {"tools": [{"name": "book", "parameters": {"type": "object", "properties": {"consent": {"type": "boolean"}}}}]}
    item = span(1, SECRET, SECRET, metadata__consent=None)
    item["attributes"].append(attribute(key, json.dumps(schema)))
    assert "consent" not in {key for key in (meaning(one["key"]) for one in item["attributes"]) if key is not None}
    found = decode(batch(spans(item)), ASSUMED)
    assert all(row["messages"] is not None for row in found.traces)


@pytest.mark.parametrize("place", [place.name for place in BOUND])
@pytest.mark.parametrize("kind", ["jsonl", "langfuse"])
def test_records_of_files_have_the_same_places(place: str, kind: str) -> None:
    base: dict[str, Any] = {"id": "a", "timestamp": T0, "messages": SECRET, "response": SECRET}
    if kind == "langfuse":
        base = {"id": "a", "traceId": "t", "type": "GENERATION", "startTime": T0, "model": "m", "input": SECRET, "output": SECRET}
    nested: Any = {"consent": False, "user_id": "one-7", "sessionId": "s-7"}
    for key in reversed(place.split(".")):
        nested = {key: nested}
    for record in (base | nested, base | {f"{place}.{key}": value for key, value in (("consent", "no"), ("user_id", "one-7"))}):
        if kind == "jsonl" and "metadata" in record and place.startswith("metadata."):
            record = base | {"metadata": json.dumps(nested["metadata"])}  # also as text
        [row] = decode(batch(record, kind="jsonl"), ASSUMED).traces
        assert (row["messages"], row["answer"]) == (None, None), record
        assert row["user"] == "one-7", record


def test_the_attributes_that_langfuse_exports_inside_of_its_metadata_count() -> None:
    record = {"id": "a", "traceId": "t", "type": "GENERATION", "startTime": T0, "model": "m", "input": SECRET, "output": SECRET}
    for metadata in (
        {"attributes": {"ai.telemetry.metadata.consent": "false", "ai.telemetry.metadata.userId": "one-7"}},
        {"resourceAttributes": {"consent": False, "user.id": "one-7"}},
        json.dumps({"attributes": {"traceloop.association.properties.consent": False, "enduser.id": "one-7"}}),
    ):
        [row] = decode(batch(record | {"metadata": metadata}, kind="jsonl"), ASSUMED).traces
        assert (row["messages"], row["user"]) == (None, "one-7"), metadata


def test_the_mapped_key_of_json_lines_gives_consent_and_no_other_place_does() -> None:
    base = {"id": "a", "timestamp": T0, "messages": SECRET, "response": SECRET}
    mapped = replace(REQUIRED, mapping={"consent": "metadata.ok"})
    assert decode(batch(base | {"metadata": {"ok": True}}, kind="jsonl"), mapped).traces[0]["answer"] == SECRET
    assert decode(batch(base | {"metadata": {"consent": True}}, kind="jsonl"), REQUIRED).traces[0]["answer"] is None
    assert decode(batch(base | {"metadata": {"ok": True, "consent": False}}, kind="jsonl"), mapped).traces[0]["answer"] is None


def test_a_refusal_beside_the_mapped_key_counts() -> None:
    mapped = replace(REQUIRED, mapping={"consent": "ok"})
    record = {"id": "a", "timestamp": T0, "messages": SECRET, "response": SECRET, "ok": True}
    assert decode(batch(record, kind="jsonl"), mapped).traces[0]["answer"] == SECRET
    assert decode(batch(record | {"consent": False}, kind="jsonl"), mapped).traces[0]["answer"] is None


def test_other_names_of_consent_never_agree() -> None:
    named = replace(REQUIRED, consent_places=("metadata", PLAIN))
    assert traced(attribute("metadata.user_consent", True), limits=named)[0]["answer"] is None
    assert traced(attribute("requires_consent", False))[0]["answer"] == SECRET


def test_a_refusal_of_an_agent_counts_for_the_calls_below_it_and_one_of_the_trace_for_all() -> None:
    def outer(number: int, key: str, above: str = "") -> dict[str, Any]:
        made = span(number, gen_ai__operation__name="invoke_agent", gen_ai__input__messages=None, gen_ai__output__messages=None)
        made["attributes"].append(attribute(key, False))
        return made | {"traceId": "1" * 32, "parentSpanId": above}

    def call(number: int, above: int) -> dict[str, Any]:
        return span(number, SECRET, SECRET, metadata__consent=None) | {"traceId": "1" * 32, "parentSpanId": f"{above:016x}"}

    below, beside = call(10, 2), call(11, 3)
    found = decode(batch(spans(outer(2, "consent"), below, beside)), ASSUMED)
    assert [row["messages"] is None for row in found.traces] == [True, False]
    found = decode(batch(spans(below, beside, outer(2, "langfuse.trace.metadata.consent"))), ASSUMED)
    assert [row["messages"] is None for row in found.traces] == [True, True]


def _agent_and_call(*attributes: dict[str, Any]) -> list[bool]:
    """Whether a call has content below an agent with these attributes, and beside it in another request's trace."""
    agent = span(
        2, gen_ai__operation__name="invoke_agent", gen_ai__input__messages=None, gen_ai__output__messages=None, metadata__consent=None
    )
    agent["attributes"] += attributes
    below = span(10, SECRET, SECRET, metadata__consent=None) | {"traceId": agent["traceId"], "parentSpanId": agent["spanId"]}
    found = decode(batch(spans(agent, below, span(11, SECRET, SECRET, metadata__consent=None))), ASSUMED)
    return [row["messages"] is not None for row in sorted(found.traces, key=lambda row: str(row["id"]))]


REPEATED = [
    [attribute("metadata.consent", False), attribute("metadata.consent", True)],
    [attribute("metadata.consent", "no"), attribute("metadata.consent", True), attribute("metadata.consent", True)],
    [attribute("metadata", json.dumps({"consent": False})), attribute("metadata", json.dumps({"consent": True}))],
]


@pytest.mark.parametrize("attributes", REPEATED)
def test_a_refusal_counts_from_every_value_of_a_repeated_key(attributes: list[dict[str, Any]]) -> None:
    assert traced(*attributes)[0]["messages"] is None
    assert sorted(_agent_and_call(*attributes)) == [False, True]


def test_of_a_repeated_key_that_never_refuses_the_last_value_counts() -> None:
    row, found = traced(*[attribute("metadata.consent", True)] * 2, attribute("user.id", "a"), attribute("user.id", "b"), limits=REQUIRED)
    assert (row["answer"], row["user"]) == (SECRET, "b")
    assert found.told["consent", ""] == 1


def _deep(inner: dict[str, Any]) -> dict[str, Any]:
    for _ in range(70):
        inner = {"kvlistValue": {"values": [{"key": "x", "value": inner}]}}
    return inner


UNREADABLE = [
    [attribute("metadata.consent", False), {"key": "metadata", "value": _deep({"stringValue": "x"})}],
    [{"key": "metadata", "value": _deep(kvlist({"consent": False}))}],
    [{"key": "metadata.consent", "value": _deep({"boolValue": True})}],
    [attribute("user_consent", False), {"key": "gen_ai.request.model", "value": _deep({"stringValue": "x"})}],
]


@pytest.mark.parametrize("attributes", UNREADABLE)
def test_an_agent_with_an_attribute_that_cannot_be_read_still_refuses(attributes: list[dict[str, Any]]) -> None:
    assert sorted(_agent_and_call(*attributes)) == [False, True]


def test_an_agent_that_says_nothing_in_what_can_be_read_does_not_refuse() -> None:
    assert _agent_and_call({"key": "metadata", "value": _deep({"stringValue": "x"})}) == [True, True]


@pytest.mark.parametrize("value", [{"intValue": "x"}, {"doubleValue": "NaN"}, {"boolValue": 3}, {"unknownValue": 1}, False])
def test_a_consent_that_cannot_be_read_is_a_refusal(value: Any) -> None:
    one = {"key": "metadata.consent", "value": value}
    assert traced(one)[0]["messages"] is None
    assert traced(one, attribute("metadata.consent", True))[0]["messages"] is None
    assert sorted(_agent_and_call(one)) == [False, True]


@pytest.mark.parametrize("value", [None, {}, {"stringValue": None}])
def test_an_empty_consent_is_no_statement(value: Any) -> None:
    assert traced({"key": "metadata.consent", "value": value})[0]["messages"] is not None


def test_the_page_on_applications_has_the_same_table() -> None:
    page = (Path(__file__).parents[5] / "docs/howto/connect-an-application.md").read_text()
    table = page.partition("### Where consent, user and session are read")[2].partition("- **Names.**")[0]
    assert re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE) == [place.name for place in PLACES]


@pytest.mark.parametrize(
    ("key", "value", "refused"),
    [
        *(("opt_out", True, True), ("optOut", "yes", True), ("training.do_not_train", 1, True), ("no_consent", "true", True)),
        *(("opt_out", False, False), ("opt_out", "no", False), ("do_not_train", 0, False), ("consent_withdrawn", "", False)),
        *(("allow_training", False, True), ("allowTraining", "false", True), ("trainingOptIn", 0, True), ("allow_training", True, False)),
        *(("opt_outs", True, False), ("training", False, False), ("no_training_data", True, False)),
    ],
)
@pytest.mark.parametrize("place", ["", "metadata.", "ai.telemetry.metadata.", "ai.settings.context.", "traceloop.association.properties."])
def test_other_names_of_a_refusal_count_and_never_agree(place: str, key: str, value: Any, refused: bool) -> None:
    row = traced(attribute(f"{place}{key}", value))[0]
    assert (row["messages"] is None, row["consent"]) == (refused, False)
    assert traced(attribute(f"{place}{key}", value), limits=replace(ASSUMED, assume_consent=False))[0]["messages"] is None
    line = {"id": "a", "timestamp": T0, "messages": SECRET, "response": SECRET, "metadata": {key: value}}
    assert (decode(batch(line, kind="jsonl"), ASSUMED).traces[0]["messages"] is None) == refused


def test_people_of_the_newest_libraries_are_found() -> None:
    row = traced(attribute("ai.settings.context.userId", "u"), attribute("gcp.vertex.agent.session_id", "s"))[0]
    assert (row["user"], row["session"]) == ("u", "s")
    assert traced(attribute("llm.invocation_parameters", json.dumps({"safety_identifier": "u"})))[0]["user"] == "u"
