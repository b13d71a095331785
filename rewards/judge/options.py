"""Options of the judges."""

from __future__ import annotations

from pydantic import Field

from ratchet.contracts.loop.endpoint import ModelEndpoint
from ratchet.rewards.judge.rubrics import QUALITY


class EndpointOptions(ModelEndpoint):
    """Options of all judges: the endpoint, the limits, and when the judge is believed."""

    structured: bool = True
    """Whether the server is asked to follow the JSON schema of a verdict (`response_format`). The reply is validated in any case."""
    concurrency: int = Field(default=32, ge=1, le=1024)
    """Maximum number of requests at the same time. It falls while the server answers 429, and rises again."""
    timeout: float = Field(default=120.0, gt=0, le=3600)
    """Maximum seconds for one reply."""
    patience: float = Field(default=600.0, gt=0, le=86_400)
    """Seconds without any successful reply after which the step is tried again later. A training job ends then, and its next attempt
    continues from the last checkpoint."""
    max_tokens: int = Field(default=512, ge=64, le=32_768)
    """Maximum tokens of one reply."""
    budget: int = Field(default=2_000_000, ge=0)
    """Maximum tokens that this judge may use for the line in 24 hours, prompts and replies together. If they do not suffice, the cycle is
    held."""
    max_answers: int = Field(default=1000, ge=0)
    """Maximum number of logged answers per cycle that the judge grades: a random selection of those that no stronger tier decides."""
    in_jobs: bool = False
    """Whether GRPO's jobs ask the judge while they train, if it is believed. A job then sends the answers that no stronger tier decides,
    and needs the API key: on one machine from `key_file`, on a cluster from `key_env`, which `cluster.secrets` names."""
    job_budget: int = Field(default=20_000_000, ge=0)
    """Maximum tokens that this judge may use in one attempt to train, prompts and replies together. The budgets of several judges in a
    job are added up. A job that needs more ends."""
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


class JudgeOptions(EndpointOptions):
    """Options of the scorer `Judge`."""

    rubric: str = Field(default=QUALITY, min_length=10, max_length=20_000)
    """What the judge assesses, in words. It must rate an answer low that has nothing to do with the question: the probes are such
    answers."""
