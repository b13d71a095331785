"""The harness notices by name where a release writes its records elsewhere than in the recorded fixture, and which releases are newer."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.harness.__main__ import FIXTURES, fixture_of
from tests.harness.libraries import LIBRARIES
from tests.harness.newest import Release, packages, pins, table
from tests.harness.shapes import changed, shape_of, shape_of_fixture
from tests.unit.materializer.records import attribute

REQUEST: dict[str, Any] = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "attributes": [
                                attribute("llm.input_messages.0.message.content", "q"),
                                attribute("llm.input_messages.1.message.content", "r"),
                                attribute("gen_ai.output.messages", '[{"role": "assistant", "parts": [{"type": "text", "content": "a"}]}]'),
                            ],
                            "events": [{"name": "gen_ai.choice", "attributes": [attribute("message", '{"content": "a"}')]}],
                        }
                    ]
                }
            ]
        }
    ]
}


def test_a_shape_has_the_places_and_the_kinds_of_parts_but_no_content() -> None:
    places = shape_of([("otlp-json", REQUEST)])
    assert "span llm.input_messages.N.message.content" in places
    assert "span gen_ai.output.messages.role = assistant" in places
    assert "span gen_ai.output.messages.parts.type = text" in places
    assert "event gen_ai.choice message.content" in places
    assert not any(place.endswith(("q", "= a")) for place in places)


def test_a_release_that_writes_an_attribute_elsewhere_is_told_by_name() -> None:
    later = copy.deepcopy(REQUEST)
    span = later["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    span["attributes"][2]["key"] = "gen_ai.output"
    change = changed(shape_of([("otlp-json", REQUEST)]), shape_of([("otlp-json", later)]))
    assert change
    assert "span gen_ai.output.messages" in change.gone
    assert "span gen_ai.output" in change.new
    assert "places gone" in str(change)
    assert not changed(shape_of([("otlp-json", REQUEST)]), shape_of([("otlp-json", copy.deepcopy(REQUEST))]))


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.name)
def test_each_recorded_fixture_has_a_shape(library: Any) -> None:
    path = fixture_of(library.name)
    assert path.parent == FIXTURES
    if path.exists():
        assert len(shape_of_fixture(path)) > 10


def test_newer_releases_are_told_with_and_without_the_limits() -> None:
    assert pins("langfuse==5.0.4 \\\n    --hash=sha256:aa\nOpenAI==3.57.0\n    # via x\n") == {"langfuse": "5.0.4", "openai": "3.57.0"}
    found = [Release("a", "1", "1", "1"), Release("b", "1", "2", "2"), Release("c", "1", "1", "3")]
    lines = table(found).splitlines()[1:]
    assert [line.split("  ")[-1].strip() for line in lines] == ["1", "a newer release", "a newer release, outside of the limits"]
    assert "langfuse" in packages()
    assert "ai" in packages(node=True)
