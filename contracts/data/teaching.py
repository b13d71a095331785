"""What is sent to a teacher, and what becomes of a request to it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from ratchet.contracts.ids import Digest, digest
from ratchet.contracts.loop import TeacherSettings, TermsSettings
from ratchet.contracts.model import Count, Finite, Frozen, Magnitude


class TeacherOutcome(StrEnum):
    """What became of a question. All but the last three are final: the same teacher is not asked again."""

    ANSWERED = "answered"
    DECLINED = "declined"
    """The teacher refuses to answer."""
    CUT = "cut"
    """The answer reached `teacher.max_tokens`."""
    MALFORMED = "malformed"
    """The reply is no chat completion with a text."""
    REJECTED = "rejected"
    """The server refuses this prompt (HTTP 400, 413 or 422)."""
    LOST = "lost"
    """No reply arrived in time, although the request was sent. It counts with its highest cost."""
    BUSY = "busy"
    """The server is busy (HTTP 429, 503 or 529)."""
    REFUSED = "refused"
    """The server refuses all requests, for example because of the key (HTTP 401 or 403)."""
    UNREACHABLE = "unreachable"
    """No connection, or no key: nothing was sent."""


OPEN = frozenset({TeacherOutcome.BUSY, TeacherOutcome.REFUSED, TeacherOutcome.UNREACHABLE})
"""Outcomes after which a question may be asked again, and which end the asking."""


class TeacherReply(Frozen):
    """What became of one question."""

    outcome: TeacherOutcome
    text: str | None = None
    """The answer; None without one."""
    input_tokens: Count | None = None
    """Tokens of the prompt. None: the server does not say so."""
    output_tokens: Count | None = None
    """Tokens of the answer. None: the server does not say so."""
    requests: Count = 1
    """Number of requests that were sent for it."""
    detail: str = ""
    """What is wrong and what to do, without content."""


class SendablePrompt(Frozen):
    """A training prompt that may be sent to a teacher."""

    prompt_id: Digest
    trace: str
    """source/id of the newest trace that asked it and whose user agrees. The answer is about this trace."""
    messages: tuple[dict[str, Any], ...]
    """The conversation, masked by the present rules."""
    slice: str | None
    answered: bool
    """Whether its right answer is known from people or from the application."""


class Sendable(Frozen):
    """The training prompts of a snapshot that may be sent to a teacher."""

    prompts: tuple[SendablePrompt, ...]
    refused: dict[Digest, str]
    """prompt_id of the other training prompts -> why they may not be sent."""
    provable: bool
    """Whether the line has a verifiable scorer that needs no right answer, so that it can confirm answers."""


class TeacherRound(Frozen):
    """The result of one asking, whose answers are in the lake. It is the content of the ledger row `round`."""

    cycle: str = ""
    """The cycle that asked; empty for a command."""
    actor: str = ""
    """Who gave the command; empty for a cycle."""
    version: str
    """Version of the teacher; its first 16 characters."""
    url: str
    model: str
    region: str
    consent: str
    """`teacher.consent` at that time."""
    unmasked: bool = False
    """Whether the loop file masks nothing, which `teacher.unmasked` acknowledges."""
    terms: TermsSettings
    asked: Count = 0
    """Number of questions that were sent for the answers that the line lacks."""
    measuring: Count = 0
    """Number of questions that were sent to measure the agreement."""
    outcomes: dict[str, int]
    """Outcome -> number of questions."""
    left_out: dict[str, int]
    """Reason -> number of questions without a right answer that were not sent."""
    cost: Magnitude
    currency: str
    kept: Count = 0
    """Number of answers that are new in the lake."""
    questions: Digest
    """Artifact: JSON list of the prompt_id of the questions that were sent for the answers that the line lacks."""
    expected: Finite
    """Accuracy that the line gains if it learns a right answer to each of them and nothing else."""
    stopped: str = ""
    """Why the asking ended early; empty if all questions were asked."""


def teacher_version(settings: TeacherSettings) -> Digest:
    """Return the identity of a teacher: what its answers depend on, as far as the loop file tells."""
    return digest([settings.url, settings.model, settings.version, settings.max_tokens, settings.temperature])


def highest_tokens(messages: tuple[dict[str, Any], ...]) -> int:
    """Return an upper bound of the tokens of a prompt: a token has at least one byte of text, and a message a frame."""
    return sum(len(str(message.get("content") or "").encode()) + 16 for message in messages)


def cost_of(settings: TeacherSettings, input_tokens: int, output_tokens: int) -> float:
    """Return the price of a request in the currency of the settings."""
    return (input_tokens * settings.input_price + output_tokens * settings.output_price) / 1e6


def highest_cost(settings: TeacherSettings, messages: tuple[dict[str, Any], ...]) -> float:
    """Return the highest cost of asking a question once."""
    return cost_of(settings, highest_tokens(messages), settings.max_tokens)
