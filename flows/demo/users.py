"""Simulated users and reviewers.

Users send requests through the router, rate answers with noise, and sometimes correct them. Reviewers label a random sample. Both act
only as HTTP clients of the product.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from ratchet.contracts.data.senders import Role
from ratchet.contracts.serving import RouterHeader
from ratchet.flows.demo.task import Request

_REGIONS = ("eu", "us", "kr")


@dataclass(frozen=True)
class Habits:
    """Parameters of the simulated behaviour. All rates are probabilities in [0, 1]."""

    users: int = 200
    """Number of distinct users."""
    rate: float = 0.6
    """Share of answers that the user rates."""
    flip: float = 0.12
    """Share of ratings that are wrong."""
    correct: float = 0.2
    """Share of incorrect answers that the user corrects."""
    review: float = 0.25
    """Share of conversations that a reviewer labels with the correct answer, independent of the model's answer."""
    consent: float = 0.95
    """Share of users who consent to the use of their data."""
    temperature: float = 1.0
    """Sampling temperature of the requests."""


@dataclass
class Tally:
    """Counts of the requests and their results."""

    asked: int = 0
    failed: int = 0
    right: int = 0


class Crowd:
    """Simulated users of one router, and reviewers, who send feedback to one OTLP receiver. `tokens` are those of their credentials."""

    def __init__(self, router: str, receiver: str, tokens: Mapping[Role, str], served_model: str, habits: Habits, seed: int) -> None:
        self._router, self._model, self._habits = router, served_model, habits
        self._draw = random.Random(seed)
        self._client = httpx.Client(timeout=60, trust_env=False, limits=httpx.Limits(max_connections=64))
        self._receiver = receiver
        self._tokens = tokens
        self._lock = threading.Lock()
        self.tally = Tally()

    def ask_all(self, requests: Sequence[Request], concurrency: int = 24) -> Tally:
        """Send all requests, at most `concurrency` at a time, and then their feedback in batches of 200.

        Returns the tally of this call. Raises RuntimeError if the receiver accepts no feedback.
        """
        before = Tally(self.tally.asked, self.tally.failed, self.tally.right)
        lives = [(request, self._draw.randrange(self._habits.users), self._draw.random(), self._draw.random()) for request in requests]
        with ThreadPoolExecutor(concurrency) as pool:
            feedback = [record for records in pool.map(lambda life: self._one(*life), lives) for record in records]
        for role in (Role.FEEDBACK, Role.REVIEW):
            sent = [record for sender, record in feedback if sender is role]
            for at in range(0, len(sent), 200):
                self._send(role, sent[at : at + 200])
        t = self.tally
        return Tally(t.asked - before.asked, t.failed - before.failed, t.right - before.right)

    def _one(self, request: Request, user: int, mood: float, luck: float) -> list[tuple[Role, dict[str, Any]]]:
        draw = random.Random(f"{request.prompt} {user} {mood}")
        headers: dict[str, str] = {
            RouterHeader.SESSION: f"user-{user:03d}-{draw.randrange(6)}",
            RouterHeader.USER: f"user-{user:03d}",
            RouterHeader.CONSENT: str(random.Random(f"consent {user}").random() < self._habits.consent),
            RouterHeader.REGION: _REGIONS[user % 3],
            RouterHeader.SLICE: request.intent,
        }
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": request.prompt}],
            "temperature": self._habits.temperature,
            "max_tokens": 40,
            "seed": draw.randrange(2**31),
        }
        try:
            response = self._client.post(f"{self._router}/v1/chat/completions", json=body, headers=headers)
            answer = response.json()["choices"][0]["message"]["content"] if response.status_code == 200 else None
        except (httpx.HTTPError, ValueError, LookupError):
            response, answer = None, None
        with self._lock:
            self.tally.asked += 1
            self.tally.failed += answer is None
            self.tally.right += answer == request.reference
        if response is None or answer is None:
            return []
        return self._feedback(request, answer, response.headers[RouterHeader.TRACE], f"user-{user:03d}", mood, luck, draw)

    def _feedback(
        self, request: Request, answer: str, trace: str, user: str, mood: float, luck: float, draw: random.Random
    ) -> list[tuple[Role, dict[str, Any]]]:
        habits, right = self._habits, answer == request.reference
        feedback = []
        if mood < habits.rate:
            honest = draw.random() >= habits.flip
            feedback.append((Role.FEEDBACK, _log(trace, "user_feedback", user, score=float(right == honest))))
        if not right and luck < habits.correct:
            feedback.append((Role.FEEDBACK, _log(trace, "user_correction", user, text=request.reference)))
        if draw.random() < habits.review:
            feedback.append((Role.REVIEW, _log(trace, "reviewer_reference", "reviewer", text=request.reference)))
        return feedback

    def _send(self, role: Role, records: list[dict[str, Any]]) -> None:
        body = {"resourceLogs": [{"scopeLogs": [{"scope": {"name": "demo.feedback"}, "logRecords": records}]}]}
        headers = {"authorization": f"Bearer {self._tokens[role]}", "content-type": "application/json"}
        for _ in range(20):
            try:
                response = self._client.post(f"{self._receiver}/v1/logs", content=json.dumps(body), headers=headers)
                if response.status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.25)
        raise RuntimeError(f"the receiver at {self._receiver} did not accept feedback in 20 attempts")


def _log(trace: str, name: str, user: str, score: float | None = None, text: str | None = None) -> dict[str, Any]:
    """Return one OTLP log record: the event gen_ai.evaluation.result of the OpenTelemetry GenAI semantic conventions."""
    trace_id, span_id = trace.split(":")
    attributes: list[dict[str, Any]] = [
        {"key": "gen_ai.evaluation.name", "value": {"stringValue": name}},
        {"key": "user.id", "value": {"stringValue": user}},
    ]
    if score is not None:
        attributes.append({"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": score}})
    if text is not None:
        attributes.append({"key": "gen_ai.evaluation.explanation", "value": {"stringValue": text}})
    now = str(time.time_ns())
    return {
        "timeUnixNano": now,
        "observedTimeUnixNano": now,
        "eventName": "gen_ai.evaluation.result",
        "traceId": trace_id,
        "spanId": span_id,
        "attributes": attributes,
    }
