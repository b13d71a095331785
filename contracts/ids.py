"""Identifiers: canonical JSON, content digests, the identity of prompts, and the names of external effects.

Names are derived deterministically from the objects they belong to. A repeated call therefore finds the result of the first call.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel

Digest: TypeAlias = str
"""SHA-256 of content, as lower-case hexadecimal text."""


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(value: Any) -> bytes:
    """Return the canonical JSON encoding of `value`: sorted keys, no spaces, UTF-8. Raises `ValueError` for NaN and infinities."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return _CANONICAL.encode(value).encode()


def digest(value: Any) -> Digest:
    """Return the SHA-256 of `value`. Bytes are hashed unchanged; any other value is hashed in its canonical encoding."""
    return hashlib.sha256(value if isinstance(value, bytes) else canonical(value)).hexdigest()


def digest_file(path: Path) -> Digest:
    """Return the SHA-256 of a file, which is read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_share(*parts: object) -> float:
    """Return a pseudo-random number in [0, 1) that depends only on `parts`."""
    plain = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(plain.encode()).digest()[:7], "big") / (1 << 56)


_LONGEST_PERSON_ID = 256
_INVISIBLE = "\ufeff\u200b\u200c\u200d\u200e\u200f\u2060"


def person_id(text: str) -> str:
    """Return the form in which the id of a user or a session is used: Unicode NFC, without white space and invisible characters around it.

    An id of more than 256 characters becomes its digest. The form of a form is the form itself. Letters of different case stay different.
    """
    before = None
    while text != before:  # white space may follow invisible characters
        before, text = text, text.replace("\x00", "").strip().strip(_INVISIBLE)
    text = unicodedata.normalize("NFC", text)
    return text if len(text) <= _LONGEST_PERSON_ID else f"sha256-{digest(text.encode('utf-8', 'surrogatepass'))}"


INSTRUCTIONS = ("system", "developer")
"""Roles of messages that instruct the model."""
SkippedTexts: TypeAlias = tuple[str, ...]
"""Normalised texts in user messages that are no question, told apart by their last character. END: a whole message, as `whole_text` returns
it. AFTER: what stands directly before the question of a message. UNTIL: what stands directly behind it. Any other one: the beginning of a
message."""
END, AFTER, UNTIL = "\n", "\r", "\f"
"""Characters that no normalised text has."""
_LONGEST_WHOLE = 200
"""Characters of a text up to which it can be one of those that are skipped as a whole."""

NORMALISER = 1
"""Version of `normalise`. The holdout split depends on it, so every change of `normalise` needs a new version."""


@lru_cache(maxsize=8)  # the prompt and the root of a conversation are often one text
def normalise(text: str) -> str:
    """Normalise text, version 1: Unicode NFKC, case folding, one space for each run of white space."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def whole_text(text: str) -> str:
    """Return the normalised text from its first letter or digit to its last one, followed by END. A text without any gives END alone."""
    text = normalise(text)
    places = [place for place, character in enumerate(text) if character.isalnum()]
    return (text[places[0] : places[-1] + 1] if places else "") + END


def _is_skipped(text: str, skipped: SkippedTexts) -> bool:
    """Return whether a normalised text begins with one of `skipped`, or is one of them as a whole. So does the question in it."""
    return any(
        one.startswith(skipped) or (len(one) <= _LONGEST_WHOLE and whole_text(one) in skipped) for one in {text, question_in(text, skipped)}
    )


def question_in(text: str, skipped: SkippedTexts) -> str:
    """Return the part of a normalised text between a mark with AFTER and the next one with UNTIL.

    Documents before or behind the question may contain the marks too, so there can be several such parts. The last one that is not empty
    counts; parts that end with a mark count before those that end with the text. A text without marks is returned as a whole.
    """
    after, until = _marks(skipped)
    if after is None and until is None:
        return text
    begins = [found.end() for found in after.finditer(text)] if after else []
    ends = [found.start() for found in until.finditer(text)] if until else []
    parts = list[tuple[bool, str]]()
    for begin in begins or [0]:
        at = bisect_left(ends, begin)
        parts.append((at < len(ends), text[begin : ends[at] if at < len(ends) else None].strip()))
    closed = [part for is_closed, part in parts if is_closed and part]
    return (closed or [part for _, part in parts if part] or [text])[-1]


@lru_cache(maxsize=8)
def _marks(skipped: SkippedTexts) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
    """Return what finds the marks with AFTER, and those with UNTIL; None without any. No mark begins inside a Latin word."""
    found = []
    for end in (AFTER, UNTIL):
        marks = sorted((mark[:-1] for mark in skipped if mark.endswith(end)), key=len, reverse=True)
        begins = (("(?<![a-z\u00df-\u024f])" if mark[0].isalpha() else "") + re.escape(mark) for mark in marks)
        found.append(re.compile("|".join(begins)) if marks else None)
    return found[0], found[1]


def prompt_id(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> Digest:
    """Return the digest of the normalised conversation: roles and contents of all messages, their tool calls, and the tools.

    Ids of tool calls are random, so their order counts.
    """
    ids = (call.get("id") for message in messages for call in message.get("tool_calls") or ())
    places = {name: place for place, name in enumerate(dict.fromkeys(ids))}
    identity: list[Any] = [_message_identity(message, places) for message in messages]
    return digest([*identity, {"tools": list(tools)}] if tools else identity)


def _message_identity(message: Mapping[str, Any], places: Mapping[Any, int]) -> list[Any]:
    identity: list[Any] = [str(message["role"]), normalise(content_text(message["content"]))]
    if message.get("tool_calls"):
        identity.append([call["function"] for call in message["tool_calls"]])
    if message.get("tool_call_id") is not None:
        identity.append(places.get(message["tool_call_id"], -1))
    return identity


def content_text(content: Any) -> str:
    """Return the content of a message as text. Parts other than text are shown as JSON."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    shown = (
        part["text"] if part.get("type") == "text" else json.dumps(part, separators=(",", ":"), ensure_ascii=False) for part in content
    )
    return "\n".join(str(text) for text in shown)


def root_id(messages: Sequence[Mapping[str, Any]], skipped: SkippedTexts = ()) -> Digest:
    """Return the digest of `root_text`.

    All turns of a conversation have the same root. The holdout split and the clusters of the gate use it.
    """
    return digest(root_text(messages, skipped).encode())


def root_text(messages: Sequence[Mapping[str, Any]], skipped: SkippedTexts = ()) -> str:
    """Return the normalised first user message that is a question: that begins with none of `skipped`, and is none of them as a whole.

    If all of them do, it is the last one, and without a user message, the first message. Of a message with marks of `skipped`, it is the
    part between them.
    """
    asked = [message for message in messages if message["role"] == "user"] or messages[:1]
    text = ""
    for message in asked:
        text = normalise(content_text(message["content"]))
        if not skipped or not _is_skipped(text, skipped):
            break
    return question_in(text, skipped)


def without_opening(messages: Sequence[Mapping[str, Any]], skipped: SkippedTexts) -> list[Mapping[str, Any]]:
    """Return the messages without those before the one of `root_text` that are no instructions."""
    asked = [place for place, message in enumerate(messages) if message["role"] == "user"] if skipped else []
    questions = (place for place in asked if not _is_skipped(normalise(content_text(messages[place]["content"])), skipped))
    begin = next(questions, asked[-1] if asked else 0)
    return [message for place, message in enumerate(messages) if place >= begin or message["role"] in INSTRUCTIONS]


def checkpoint_name(plan: Digest, attempt: int, incarnation: int) -> str:
    """Return the name that a job binds its finished checkpoint to.

    The name includes the incarnation. A stale incarnation that is still alive (for example behind a network partition) therefore cannot
    publish under the current name.
    """
    return f"checkpoint/{plan}/a{attempt}/i{incarnation}"


def line_stream(line: str) -> str:
    """Return the ledger stream of a model line: adoptions, opened and ended cycles, champions."""
    return f"line/{line}"


def cycle_stream(line: str, number: int) -> str:
    """Return the ledger stream of a cycle. Its name is also the cycle's id."""
    return f"cycle/{line}/{number:04d}"


def approval_stream(cycle: str, kind: str) -> str:
    """Return the ledger stream of a request for approval."""
    return f"approval/{cycle.removeprefix('cycle/')}/{kind}"


def exports_stream(line: str) -> str:
    """Return the ledger stream of a line's exported training sets."""
    return f"exports/{line}"


def reviews_stream(line: str) -> str:
    """Return the ledger stream of the answers that a line got from reviewers."""
    return f"reviews/{line}"


def teacher_stream(line: str) -> str:
    """Return the ledger stream of the questions that a line sent to its teacher, and of the replies."""
    return f"teacher/{line}"


def rollout_stream(cycle: str) -> str:
    """Return the ledger stream of a cycle's rollout. Its name is also the rollout's id."""
    return f"rollout/{cycle.removeprefix('cycle/')}"


def ingest_stream(line: str, batch: Digest) -> str:
    """Return the ledger stream of an ingested batch. `batch` is the digest of its content."""
    return f"ingest/{line}/{batch}"


def effect_name(cycle: str, step: str) -> str:
    """Return the name that a step's result is bound to in `Artifacts`."""
    return f"{cycle}/{step}"


def job_name(plan: Digest, attempt: int, spec: Digest) -> str:
    """Return a job's name, a valid DNS label. It is determined by the plan, the attempt and the digest of the rendered spec."""
    return f"rt-{digest([plan, attempt, spec])[:16]}-a{attempt}"


def version_tag(checkpoint: Digest) -> str:
    """Return the tag of a model version, derived from the digest of its checkpoint."""
    return f"v-{checkpoint[:12]}"
