"""Tests of the masking of names, with a model that is trained here on a few sentences and runs in the real Presidio."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ratchet.contracts.conversation import answer_message, stored_answer
from ratchet.contracts.errors import ConfigError, Rejected
from ratchet.contracts.loop import PrivacySettings
from ratchet.materializer.privacy.finding import Finding, beside
from ratchet.materializer.privacy.masking import Masker, Masking
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import batch, span, spans

PEOPLE = ("Anna Schmidt", "Omar Haddad", "Mia Rossi", "Jean Dupont", "Lena Novak", "Ivan Petrov", "Sofia Costa", "Kenji Sato")
PLACES = ("Bonn", "Lyon", "Porto", "Krakow", "Turin", "Osaka", "Graz", "Gdansk")
SENTENCES = (
    "Please call {person} in {place} today.",
    "My name is {person} and I live in {place}.",
    "{person} has lost the parcel to {place}.",
    "The parcel of {person} is late.",
    "Is there a shop in {place} or not?",
)
OTHERS = ("Where is my parcel?", "The order is late again.", "How do I return it?", "Please send the invoice.", "user", "assistant", "chat")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Train a model of spaCy that knows a few people and places, and return its folder. Takes seconds."""
    spacy = pytest.importorskip("spacy")
    pytest.importorskip("presidio_analyzer")
    from spacy.training import Example

    draw = random.Random(1)
    spacy.util.fix_random_seed(1)
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("ner")
    for label in ("PERSON", "GPE"):
        ner.add_label(label)
    examples = [Example.from_dict(nlp.make_doc(text), {"entities": []}) for text in OTHERS]
    for sentence in SENTENCES:
        for person, place in zip(PEOPLE, draw.sample(PLACES, len(PLACES)), strict=True):
            text = sentence.format(person=person, place=place)
            found = [
                (text.index(part), text.index(part) + len(part), label)
                for part, label in ((person, "PERSON"), (place, "GPE"))
                if part in text
            ]
            examples.append(Example.from_dict(nlp.make_doc(text), {"entities": found}))
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(15):
        draw.shuffle(examples)
        for at in range(0, len(examples), 8):
            nlp.update(examples[at : at + 8], sgd=optimizer)
    folder = tmp_path_factory.mktemp("model") / "tiny"
    nlp.to_disk(folder)
    return str(folder)


def settings(model: str, **more: Any) -> dict[str, Any]:
    return {"ner": {"models": {"en": model}} | more}


def masked(model: str, row: dict[str, Any], **more: Any) -> tuple[dict[str, Any], dict[str, int]]:
    counts = Masker(PrivacySettings.model_validate(settings(model, **more))).mask(row)
    return row, dict(counts)


@pytest.mark.slow
def test_names_and_places_become_placeholders_without_a_request_to_another_machine(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a look-up of an address")

    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.setattr(socket.socket, "connect", refused)
    said = [
        {"role": "user", "content": "My name is Anna Schmidt and I live in Bonn."},
        {"role": "assistant", "content": "Where is my parcel?"},
        {"role": "user", "content": "Please call Anna  Schmidt in Lyon today."},
        {"role": "user", "content": "a.b@uni-bonn.de"},
    ]
    row, counts = masked(model, {"messages": json.dumps(said), "answer": "The parcel of Anna Schmidt is late."})
    texts = [message["content"] for message in json.loads(row["messages"])]
    assert texts[0] == "My name is [PERSON_1] and I live in [LOCATION_1]."
    assert row["answer"] == "The parcel of [PERSON_1] is late."
    assert "[LOCATION_2]" in texts[2]
    assert texts[3] == "[EMAIL_1]"
    assert counts["email"] == 1
    assert counts["person"] >= 2
    again = dict(row)
    assert masked(model, again)[0] == row  # placeholders are no names


@pytest.mark.slow
def test_structure_of_messages_and_tools_stays_and_arguments_are_masked(model: str) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "send", "arguments": json.dumps({"name": "Omar Haddad", "city": "Lyon"})},
    }
    tools = json.dumps([{"type": "function", "function": {"name": "send", "description": "Please call Omar Haddad in Lyon today."}}])
    row, _ = masked(model, {"answer": stored_answer({"role": "assistant", "content": "", "tool_calls": [call]}), "tools": tools})
    assert row["tools"] == tools
    [found] = answer_message(row["answer"])["tool_calls"]
    assert (found["id"], found["type"], found["function"]["name"]) == ("call_1", "function", "send")
    assert "Omar" not in found["function"]["arguments"]
    assert "Lyon" not in found["function"]["arguments"]


@pytest.mark.slow
def test_ingest_refuses_a_record_in_which_the_recogniser_fails(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = make_datasets(tmp_path, make_loop(privacy=settings(model)))
    from presidio_analyzer import AnalyzerEngine

    analyze = AnalyzerEngine.analyze

    def broken(self: Any, text: str, *given: Any, **more: Any) -> Any:
        if "two" in text:
            raise RuntimeError(text)
        return analyze(self, text, *given, **more)

    monkeypatch.setattr(AnalyzerEngine, "analyze", broken)
    good = span(1, "My name is Mia Rossi and I live in Turin.", "Where is my parcel?")
    report = datasets.ingest(batch(spans(good, span(2, prompt="two Anna Schmidt"))))
    assert (report.traces.kept, report.traces.quarantined) == (1, 1)
    assert dict(report.traces.reasons) == {"masking_failed": 1}
    assert report.masked == {"location": 1, "person": 1}
    held = [path.read_bytes() for path in (tmp_path / "lake").rglob("*") if path.is_file()]
    assert not any(b"Anna Schmidt" in data or b"Mia Rossi" in data for data in held)


@pytest.mark.slow
def test_missing_or_unusable_models_are_errors_that_say_what_to_do(model: str, tmp_path: Path) -> None:
    blank = tmp_path / "blank"
    pytest.importorskip("spacy").blank("en").to_disk(blank)
    for name, message in (
        ("xx_no_such_model", "neither an installed package nor the absolute path"),
        ("relative/model", "neither an installed package nor the absolute path"),
        (str(tmp_path), "cannot be loaded"),
        (str(blank), "finds no entities"),
    ):
        masker = Masker(PrivacySettings.model_validate(settings(name)))
        with pytest.raises(ConfigError, match=message):
            masker.ready()
        with pytest.raises(ConfigError, match=message):
            masker.mask({"text": "hello"})
    with pytest.raises(ConfigError, match="no model finds DINOSAUR"):
        Masker(PrivacySettings.model_validate(settings(model, entities=["PERSON", "DINOSAUR"]))).ready()


def test_missing_packages_are_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.materializer.privacy.names.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"install ratchet\[presidio\]"):
        Masker(PrivacySettings.model_validate(settings("xx_not_loaded_before"))).ready()


def test_nothing_is_loaded_without_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.materializer.privacy.names.find_spec", lambda name: pytest.fail("looked for a package"))
    masker = Masker(PrivacySettings())
    masker.ready()
    assert masker.mask({"text": "My name is Anna Schmidt"}) == {}


def test_invalid_settings_are_refused() -> None:
    for bad in (
        {"models": {}},
        {"models": {"English": "m"}},
        {"models": {"en": "m"}, "entities": ["person"]},
        {"models": {"en": "m"}, "min_score": 2},
    ):
        with pytest.raises(ValidationError):
            PrivacySettings.model_validate({"ner": bad})


def _names(*values: str) -> Any:
    return lambda text: [Finding(text.index(one), text.index(one) + len(one), "person", one.casefold()) for one in values if one in text]


def test_a_name_that_overlaps_another_finding_leaves_nothing_of_either() -> None:
    def mail(text: str) -> list[Finding]:
        at = text.find("anna@firma.io")
        return [Finding(at, at + 13, "email", "anna@firma.io")] if at >= 0 else []

    masking = Masking([mail], names=_names("Anna Schmidt anna"))
    assert masking.text("Anna Schmidt anna@firma.io") == "[PERSON_1] [EMAIL_1]"
    assert Masking([mail], names=_names("io now")).text("anna@firma.io now") == "[EMAIL_1] [PERSON_1]"
    assert Masking([mail], names=_names("by anna@firma.io or")).text("by anna@firma.io or") == "[PERSON_1] [EMAIL_1] [PERSON_1]"
    assert Masking([mail], names=_names("EMAIL_1")).text("to [EMAIL_1]") == "to [EMAIL_1]"
    assert Masking([mail], names=_names("Anna")).content({"Anna": "Anna", "by Anna": 1}) == {"Anna": "[PERSON_1]", "by [PERSON_1]": 1}


def test_a_name_behind_a_key_is_found_although_a_model_would_join_them() -> None:
    assert Masking([], names=_names("Anna")).content({"name": "Anna"}) == {"name": "[PERSON_1]"}


def test_parts_beside_other_findings() -> None:
    text = "aa bb cc dd"
    whole = [Finding(0, 11, "person", "x")]
    assert [(one.start, one.end) for one in beside(whole, [(3, 5), (6, 8)], text)] == [(0, 2), (9, 11)]
    assert [(one.start, one.end) for one in beside(whole, [(6, 8), (0, 7)], text)] == [(9, 11)]
    assert beside(whole, [(0, 11)], text) == []
    assert beside(whole, [], text) == whole


def test_a_recogniser_that_fails_refuses_the_row() -> None:
    masker = Masker(PrivacySettings())
    masker._names = lambda text: 1 / 0  # type: ignore[assignment]
    masker._is_ready = True
    with pytest.raises(Rejected, match="ZeroDivisionError"):
        masker.mask({"text": "My name is Anna Schmidt"})
