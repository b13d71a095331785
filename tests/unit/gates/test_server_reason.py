"""Tests of the reason that a model server gives for a failed request: it is kept, and nothing that users or models wrote is."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.evaluation import ChatRequest
from ratchet.gates.server_reason import MOST_CHARACTERS, server_reason

PROMPT = "Where does Ann Miller of 42 Elm Street live? Call 030 1234567 about the length of the model."


def asked(prompt: str = PROMPT) -> ChatRequest:
    return ChatRequest(messages=({"role": "user", "content": [{"type": "text", "text": prompt}]},), temperature=0.0, max_tokens=8)


def body(message: str, **more: object) -> bytes:
    return json.dumps({"error": {"message": message, "type": "BadRequestError", "code": 400, **more}}).encode()


@pytest.mark.parametrize(
    "said",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: CUDA error: out of memory",
        "This model's maximum context length is 2048 tokens. However, you requested 2100 tokens",
        "EngineCore died unexpectedly",
        "the flux capacitor is broken",
    ],
)
def test_reason_of_the_server_is_kept(said: str) -> None:
    assert server_reason(body(said), asked()) == said


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"Internal Server Error", "Internal Server Error"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"object": "error", "message": "model is overloaded"}', "model is overloaded"),
        (b'{"error": "model is overloaded"}', "model is overloaded"),
        (b'{"error": {"message": "", "code": "context_length_exceeded"}}', "context_length_exceeded"),
        (b"<html><body>502 Bad Gateway</body></html>", ""),
        (b'{"detail": [{"loc": ["body"]}]}', ""),
        (b"", ""),
        (b"[" * 5000, ""),
        (b"\xff\xfe\x00", ""),
    ],
)
def test_reason_is_found_in_the_usual_forms(content: bytes, reason: str) -> None:
    assert server_reason(content, asked()) == reason


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("invalid input 'Where does Ann Miller live?' at position 3", "invalid input … at position 3"),
        ("cannot parse Where does Ann Mill", "cannot parse … does"),
        ("cannot call 0301234 or 030 1234567", "cannot call … or"),
        ("the chat template rejects: where DOES ann", "the chat template rejects: … DOES"),
        ("Failed to parse tool call: Bob Jones lives in Paris", "Failed to parse tool call: … in"),
        ("Failed to parse (Bob Jones lives there) the output", "Failed to parse … there the output"),
        ("Incorrect API key provided: sk-abcdef1234567890", "Incorrect API key provided"),
        ("key sk-abcdef1234567890abcdef1234567890 is invalid", "key … is invalid"),
        ("no route to http://ada:secret@10.0.0.1/v1", "no route to http"),
        ("mail ann@example.com is unknown", "mail … is unknown"),
        ("bad input \x1b[31mred\x07", "bad input"),
        ("die Anfrage für Jürgen ist ungültig", "die Anfrage … ist"),
    ],
)
def test_what_users_or_models_wrote_and_secrets_are_left_out(said: str, kept: str) -> None:
    assert server_reason(body(said), asked()) == kept


@given(st.text(st.characters(codec="ascii"), max_size=80), st.text(max_size=40), st.integers(0, 40))
def test_no_word_of_a_prompt_that_is_no_server_word_is_kept(prompt: str, before: str, cut: int) -> None:
    secret = f"{prompt} zanzibar quillon 987654321"
    found = server_reason(body(f"{before} {secret[cut:]}"), asked(secret))
    assert not re.search("zanzi|quill|98765", found)
    assert len(found) <= MOST_CHARACTERS
    assert found.isprintable()


def test_long_reason_is_cut() -> None:
    found = server_reason(body("memory is full and " * 500), asked())
    assert len(found) == MOST_CHARACTERS
    assert found.endswith("…")
