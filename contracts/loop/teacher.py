"""Settings of a teacher: another model that is asked for right answers which a line lacks."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ratchet.contracts.loop.endpoint import ModelEndpoint, Name
from ratchet.contracts.loop.field_types import Days, Positive, Seconds
from ratchet.contracts.model import Frozen

_Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_LOOPBACK = re.compile(r"^http://(127\.\d+\.\d+\.\d+|localhost|\[::1\])(:\d+)?(/|$)")


class TermsSettings(Frozen):
    """The provider's terms on the use of its answers for training, as a person has accepted them. The ledger records them."""

    text: Name
    """Name or address of the terms, for example `https://provider.example/terms (2026-01)`."""
    accepted_by: Name
    """Name of the person who has read them and answers for it that they permit training with the provider's answers."""
    accepted_on: date
    """Day of the acceptance."""


class TeacherSettings(ModelEndpoint):
    """A teacher. Without this section, no prompt leaves the installation for one. `url` begins with `https://`, except on this machine."""

    version: Annotated[str, Field(max_length=200)] = ""
    """A name for the present state of the model. A change of url, model, version, max_tokens or temperature makes a new teacher, whose
    agreement is measured anew, and which is asked again."""
    terms: TermsSettings
    """The provider's terms. Without them, the loop file is invalid."""
    region: Name
    """Region in which the teacher processes what it gets."""
    regions: tuple[Name, ...] = Field(min_length=1)
    """Regions that may receive the line's data. If `region` is not among them, the loop file is invalid."""
    consent: Literal["required", "obtained"] = "required"
    """required: a prompt is sent only if a user who asked it has consented to sending it to a third party (`consent_third_party` of a
    record). obtained: this consent is obtained elsewhere, for all traffic. Consent to training is needed in both cases, and never
    suffices."""
    unmasked: Literal["refused", "acknowledged"] = "refused"
    """refused: the loop file is invalid if `privacy.mask` is empty. acknowledged: prompts may leave without masks."""
    input_price: _Price
    """Price of a million tokens of prompts, in `currency`."""
    output_price: _Price
    """Price of a million tokens of answers, in `currency`."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """Currency of prices and budget (ISO 4217), for messages."""
    max_requests: Positive
    """Maximum number of requests in `period_days`, repeated and failed ones included."""
    max_cost: _Price
    """Maximum cost in `period_days`, in `currency`. A request is sent only if its highest cost is left."""
    period_days: Days = 30
    """Days to which both budgets apply, up to now."""
    questions: Positive = 100
    """Maximum number of questions without a right answer that are asked at once, for example by one cycle."""
    measure: Annotated[int, Field(ge=0, le=1000)] = 40
    """Number of questions of each slice whose right answer is known, which are asked to measure the agreement. 0: none, and then only a
    scorer can confirm an answer."""
    min_agreement: Annotated[float, Field(gt=0.5, lt=1)] = 0.7
    """Least lower bound (level 0.975) of the agreement with right answers from people, in the slice of a question, from which on answers
    that no scorer confirms are trained on. An answer confirmed by a scorer is left out if the upper bound is below it."""
    max_tokens: Positive = 1024
    """Maximum tokens of an answer. A longer answer is cut, and not used."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = 0.0
    """Sampling temperature. None: the request names none."""
    timeout: Seconds = 120.0
    """Maximum seconds for one answer."""
    patience: Annotated[float, Field(ge=0, le=3600)] = 60.0
    """Seconds for which a question waits for a teacher that is busy (HTTP 429, 503 or 529) before the asking ends."""

    @model_validator(mode="after")
    def _may_receive(self) -> TeacherSettings:
        if self.region not in self.regions:
            raise ValueError(f"the teacher is in the region {self.region!r}, and regions permits {', '.join(self.regions)} only")
        if not self.url.startswith("https://") and not _LOOPBACK.match(self.url):
            raise ValueError("url must begin with https://, because prompts of users are sent there; http:// is for this machine only")
        return self
