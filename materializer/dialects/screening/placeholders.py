"""Texts that tools write in place of content: they are no words of a person or of a model.

A record with such a text is quarantined. The placeholders of Ratchet's own masking, such as `[EMAIL_1]`, are none of them: they stand for
one value inside of a text that is otherwise whole. `quarantine.placeholders` of the loop file adds texts of other tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ratchet.contracts.errors import Rejected
from ratchet.materializer.privacy.search import Joined, places

VERSION = 2
"""Version of the table. It changes with each entry."""


class Placeholder(NamedTuple):
    """A text of one tool, as a regular expression that ignores case."""

    tool: str
    pattern: str
    unmistakable: bool = False
    """Whether nobody else writes it, so that it counts inside of a longer text, too."""


_ENTITIES = (
    "PERSON|PERSON_NAME|NAME|FIRST_NAME|LAST_NAME|EMAIL|EMAIL_ADDRESS|PHONE|PHONE_NUMBER|ADDRESS|STREET_ADDRESS|LOCATION|AGE|DATE_TIME"
    "|DATE_OF_BIRTH|USERNAME|PASSWORD|IP_ADDRESS|MAC_ADDRESS|URL|CREDIT_CARD|CREDIT_CARD_NUMBER|CREDIT_DEBIT_CARD_NUMBER|CREDIT_DEBIT_NUMBER"
    "|IBAN|IBAN_CODE|US_SSN|US_SOCIAL_SECURITY_NUMBER|SSN|BANK_ACCOUNT_NUMBER|US_BANK_NUMBER|DRIVER_ID|US_DRIVER_LICENSE|US_PASSPORT"
    "|PASSPORT_NUMBER|MEDICAL_LICENSE|CRYPTO|NRP|ORGANIZATION|PIN|AWS_ACCESS_KEY|AWS_SECRET_KEY|LICENSE_PLATE|UK_NHS"
)
"""Names that detectors of personal data put in place of a value. Inside of a text they stand for one value; alone, nothing is left."""

PLACEHOLDERS: tuple[Placeholder, ...] = (
    Placeholder("LiteLLM", r"redacted[-_ ]by[-_ ]litell?m(?:[-_a-z]*)", unmistakable=True),
    Placeholder("LiteLLM", r"default-message-value", unmistakable=True),
    Placeholder("LiteLLM", r"litellm_truncated", unmistakable=True),
    Placeholder("Logfire", r"\[Scrubbed due to [^\]\n]{1,80}\]", unmistakable=True),
    Placeholder("OpenInference", r"__REDACTED__", unmistakable=True),
    Placeholder("Langfuse", r"<fully masked due to failed mask function>", unmistakable=True),
    Placeholder("Langfuse", r"<truncated due to size exceeding limit>", unmistakable=True),
    Placeholder("Langfuse", r"\[TRUNCATED: Field exceeded size limit\]", unmistakable=True),
    Placeholder("Langfuse", r"@@@langfuseMedia:type=[^@\s]{1,300}@@@", unmistakable=True),
    Placeholder("Datadog", r"\[Non-text content object: [^\n]{0,150}\]?"),
    Placeholder("Sentry", r"\[Filtered\]"),
    Placeholder("Sentry", r"\[Blob substitute\]"),
    Placeholder("Strands", r"\[(?:user input|assistant output|tool output|content) redacted\.?\]"),
    Placeholder("Presidio, Google DLP, AWS Comprehend and Bedrock",
                rf"(?-i:(?:(?:[\[<{{]{{1,2}}(?:{_ENTITIES})[\]>}}]{{1,2}}|[<{{]{{1,2}}(?:{_ENTITIES})_\d{{1,4}}[>}}]{{1,2}})[\s,.;:]{{0,3}})+)"),
    Placeholder("Google DLP", r"#{6,}"),
    Placeholder("OpenTelemetry Collector", r"\*{3,}"),
    Placeholder("several tools", r"[\[<({]{0,2}_{0,2}(?:content |text |message |data |value |prompt |response )?"
                r"(?:redacted|scrubbed|masked|filtered|removed|omitted|hidden|sanitized|anonymized)_{0,2}[\])>}]{1,2}"),
    Placeholder("several tools", r"[\[<({]{0,2}_{0,2}REDACTED_{0,2}[\])>}]{0,2}"),
    Placeholder("several tools", r"[\[<](?:redacted|scrubbed|masked|filtered|removed|omitted|truncated)[:_\- ][^\]>\n]{1,60}[\]>]"),
    Placeholder("several tools", r"[*#\-_=.…]{1,6} ?redacted ?[*#\-_=.…]{1,6}"),
    Placeholder("several tools", r"[█▇■•●xX]{6,}"),
)  # fmt: skip

_WHOLE = re.compile("|".join(f"(?:{one.pattern})" for one in PLACEHOLDERS), re.IGNORECASE)
_INSIDE = re.compile("|".join(f"(?:{one.pattern})" for one in PLACEHOLDERS if one.unmistakable), re.IGNORECASE)
_LINE = re.compile(r"[\[<({]{1,2}_{0,2}(?:\w+ )?redacted_{0,2}[\])>}]{1,2}", re.IGNORECASE)
"""A line of its own, as parts of a message become lines of its text."""
_NEEDLES = (
    ("_", ("litellm_truncated",)),
    ("-", ("default-message-value",)),
    ("[", ("[scrubbed due to", "[truncated: field exceeded")),
    ("<", ("<fully masked due to", "<truncated due to")),
    ("@", ("@@@langfusemedia",)),
)
"""A text without `redacted` and without one of these, in lower case, has no unmistakable placeholder. The character that a needle contains
is searched first: a search for one character is several times faster than one for a word, and that is faster than the expression."""


_CLUES = places(
    *("redact", "litell", "default-message", "scrubbed", "masked", "filtered", "removed", "omitted", "hidden", "sanitized", "anonymized"),
    *("truncated", "skipped", "non-text content", "blob substitute", "@@@langfusemedia"),
)
_SIGNS = re.compile(r"[\s\"'`]*(?:[*█▇■•●xX]|#{6}|[\[<{]{1,2}[A-Z][A-Z_]{2})")
_FIRST = re.compile(r"[\s\"'`*█▇■•●xX#\[<{]")
"""The first character of a text that `_SIGNS` matches."""


def may_be_redacted(texts: Sequence[str], joined: Joined, more: Iterable[str] = ()) -> set[int]:
    """Return the numbers of the texts that `is_redacted` must look at.

    `joined` has the same texts in the same order, each behind the same words, which are none of `_CLUES`. Each placeholder has one of the
    words of `_CLUES`, or begins with one of the signs.
    """
    found, own = set[int](), tuple(more)
    if clues := joined.having(_CLUES):
        found.update(number for number, text in enumerate(joined.given) if text in clues)
    first = "".join([text[:1] or "-" for text in texts])
    found.update(match.start() for match in _FIRST.finditer(first) if _SIGNS.match(texts[match.start()]))
    return found.union(number for number, text in enumerate(texts) if any(one and one in text for one in own)) if own else found


def is_redacted(text: str, more: Iterable[str] = ()) -> bool:
    """Return whether a text is a placeholder, or has an unmistakable one inside. `more` are those of the loop file."""
    plain = text.strip().strip("\"'`").strip()
    if plain and len(plain) <= 200 and _WHOLE.fullmatch(plain):
        return True
    lower = text.lower()
    is_named = "redacted" in lower
    if is_named and any(_LINE.fullmatch(line.strip()) for line in text.splitlines()):
        return True
    if (is_named or _has_needle(lower)) and _INSIDE.search(text):
        return True
    return any(one and one in text for one in more)


def _has_needle(lower: str) -> bool:
    for sign, needles in _NEEDLES:
        if sign in lower:
            for needle in needles:
                if needle in lower:
                    return True
    return False


def check_redacted(texts: Iterable[str | None], more: Iterable[str] = ()) -> None:
    """Raise Rejected `redacted_content` if one of the texts is redacted."""
    if any(text and is_redacted(text, more) for text in texts):
        raise Rejected("redacted_content", "a text of the record is the placeholder of a tool that redacts content, so the content is lost")
