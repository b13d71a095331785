"""Options of the judges."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from ratchet.contracts.model import Frozen
from ratchet.rewards.judge.rubrics import QUALITY

Name = Annotated[str, Field(min_length=1, max_length=200)]


class EndpointOptions(Frozen):
    """Options of all judges: the endpoint, the limits, and when the judge is believed."""

    url: str = Field(pattern=r"^https?://[^/@\s]+(/[^@\s?#]*)?$")
    """Base URL of an OpenAI-compatible API, for example `http://localhost:8000/v1`. Requests go to `/chat/completions` below it."""
    model: Name
    """Name of the model in the requests."""
    key_env: Name | None = None
    """Name of the environment variable with the API key. None, and no `key_file`: requests without a key."""
    key_file: str | None = None
    """Absolute path of a file with the API key."""
    structured: bool = True
    """Whether the server is asked to follow the JSON schema of a verdict (`response_format`). The reply is validated in any case."""
    concurrency: int = Field(default=32, ge=1, le=1024)
    """Maximum number of requests at the same time. It falls while the server answers 429, and rises again."""
    timeout: float = Field(default=120.0, gt=0, le=3600)
    """Maximum seconds for one reply."""
    patience: float = Field(default=600.0, gt=0, le=86_400)
    """Seconds without any successful reply after which the step is tried again later."""
    max_tokens: int = Field(default=512, ge=64, le=32_768)
    """Maximum tokens of one reply."""
    budget: int = Field(default=2_000_000, ge=0)
    """Maximum tokens that this judge may use for the line in 24 hours, prompts and replies together. If they do not suffice, the cycle is
    held."""
    max_answers: int = Field(default=1000, ge=0)
    """Maximum number of logged answers per cycle that the judge grades: a random selection of those that no stronger tier decides."""
    floor: float = Field(default=0.7, ge=0.5, lt=1)
    """Lower bound that the agreement with people's labels must reach. Agreement is the probability that the judge ranks a right answer
    above a wrong one. Below the floor, the weight of the judge is zero."""
    min_labels: int = Field(default=30, ge=5)
    """Minimum number of right answers, and of wrong answers, with people's labels. With fewer, the weight of the judge is zero."""
    max_labels: int = Field(default=200, ge=10)
    """Maximum number of labelled answers that the judge grades to measure the agreement."""
    probes: int = Field(default=300, ge=50, le=10_000)
    """Number of probes: bad answers that contain instructions to the judge, and empty ones. The judge must resist them."""
    max_flips: float = Field(default=0.01, gt=0, le=0.5)
    """Maximum share of probes that the judge may accept, as the upper bound of an interval at level 0.95. 300 probes without any
    acceptance have a bound of 0.01. Above it, the weight of the judge is zero."""

    @model_validator(mode="after")
    def _one_key(self) -> EndpointOptions:
        if self.key_env is not None and self.key_file is not None:
            raise ValueError("key_env and key_file exclude each other")
        if self.key_file is not None and not Path(self.key_file).is_absolute():
            raise ValueError("key_file must be an absolute path")
        return self


class JudgeOptions(EndpointOptions):
    """Options of the scorer `Judge`."""

    rubric: str = Field(default=QUALITY, min_length=10, max_length=20_000)
    """What the judge assesses, in words. It must rate an answer low that has nothing to do with the question: the probes are such
    answers."""
