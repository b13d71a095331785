"""Settings of the masking of personal data and secrets."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ratchet.contracts.loop.field_types import Share
from ratchet.contracts.model import Frozen


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value!r} is not a regular expression: {error}") from None
    return value


Kind = Annotated[str, Field(pattern=r"^[a-z][a-z_]{1,30}$")]
Pattern = Annotated[str, AfterValidator(_pattern)]
PersonalData = Literal["email", "phone", "card", "iban", "national_id", "secret", "ip"]
"""Kinds of personal data and secrets that the masking knows."""


class NameSettings(Frozen):
    """Search for names of people and places with models of spaCy, through Presidio. Needs the extra `presidio` and the models."""

    models: dict[Annotated[str, Field(pattern=r"^[a-z]{2,3}$")], str] = Field(min_length=1)
    """Language -> installed package or absolute folder of a spaCy model, for example `en = "en_core_web_lg"`. Every model searches every
    text, and takes milliseconds for it."""
    entities: tuple[Annotated[str, Field(pattern=r"^[A-Z][A-Z_]{1,30}$")], ...] = Field(default=("PERSON", "LOCATION"), min_length=1)
    """Entities that are masked, by Presidio's names, for example also ORGANIZATION or NRP. `[PERSON_1]` replaces a person."""
    min_score: Share = 0.5
    """Least score of a finding. Models of spaCy give no score, and Presidio counts each of their findings as 0.85."""


class PrivacySettings(Frozen):
    """Masking of personal data and secrets at ingest. Placeholders such as `[EMAIL_1]` replace them before a record is stored."""

    mask: tuple[PersonalData, ...] = ("email", "phone", "card", "iban", "national_id", "secret", "ip")
    """Kinds that are masked. card: payment cards. iban: bank accounts. national_id: numbers of the United States, Korea, European and
    other countries. secret: API keys, tokens, passwords and private keys. ip: public IP addresses. Empty: the texts are stored as they
    are."""
    phone_regions: tuple[Annotated[str, Field(pattern=r"^[A-Z]{2}$")], ...] = ("US", "GB", "DE", "FR", "ES", "IT", "NL", "PL", "KR")
    """Countries (ISO 3166) whose phone numbers are found without a country code. Numbers with a country code are always found."""
    patterns: dict[Kind, Pattern] = Field(default_factory=dict)
    """Own kinds: name -> regular expression, for example of customer numbers. What it finds becomes `[NAME_1]`."""
    allow: tuple[str, ...] = ()
    """Values that are not masked, for example the address of your support."""
    ner: NameSettings | None = None
    """Whether names are masked, too. None: they are not."""
