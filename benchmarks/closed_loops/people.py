"""Simulated people of a closed loop: what they ask in a cycle, how they rate, and what they correct. All draws follow from seeds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.recipe_worlds import Question

START = datetime(2026, 1, 5, tzinfo=UTC)
CYCLE = timedelta(days=7)
USERS = 240
ASKED = 200
"""New questions per cycle."""
TIMES = 4
"""How often each question is asked in its cycle."""
WRONG, CORRECTED, REVIEWED = 0.15, 0.15, 0.1
"""Shares of wrong ratings, of wrong answers that the user corrects, and of conversations that a reviewer labels."""
TRAPS = ("none", "verbosity", "template", "sybils", "flippers")


@dataclass(frozen=True)
class People:
    """The users of a line."""

    seed: int
    trap: str = "none"
    """verbosity: users rate longer answers up. template: nine of ten questions are variants of one. sybils: 5 % of the users send half of
    the ratings, and rate wrong answers up and right ones down. flippers: 10 % of the users invert every rating."""

    def questions(self, pool: dict[str, list[Question]], cycle: int) -> list[Question]:
        """Take the questions of a cycle out of `pool` (slice -> unused questions). Demand shifts: each cycle, another slice doubles."""
        draw, names = random.Random(f"demand-{self.seed}-{cycle}"), sorted(pool)
        popular = names[cycle % len(names)]
        weights = [2.0 if name == popular else 1.0 for name in names]
        chosen: list[Question] = []
        while len(chosen) < ASKED and any(pool.values()):
            name = draw.choices(names, weights)[0]
            if pool[name]:
                chosen.append(pool[name].pop())
        if self.trap == "template":
            one = chosen[0]
            near = [Question(f"{one.prompt} {'please ' * (n % 3)}{n}".strip(), one.answer, one.slice) for n in range(ASKED * 9 // 10)]
            chosen = [*near, *chosen[: ASKED - len(near)]]
        return chosen

    def asked(self, questions: Sequence[Question], cycle: int) -> list[Question]:
        """Return the requests of a cycle in their order: each question several times."""
        requests = list(questions) * TIMES
        random.Random(f"order-{self.seed}-{cycle}").shuffle(requests)
        return requests

    def records(self, requests: Sequence[Question], answers: Sequence[str], cycle: int, version: str) -> list[dict[str, Any]]:
        """Return one trace with feedback per request, in the format of the JSONL source."""
        return [self._record(cycle, i, question, text, version) for i, (question, text) in enumerate(zip(requests, answers, strict=True))]

    def _record(self, cycle: int, i: int, question: Question, text: str, version: str) -> dict[str, Any]:
        luck = random.Random(f"people-{self.seed}-{cycle}-{i}")
        fine = text.strip() == question.answer
        satisfied, user = self._user(luck, fine)
        rating = satisfied if luck.random() >= WRONG else not satisfied
        corrected, reviewed = luck.random() < CORRECTED, luck.random() < REVIEWED
        name = f"user-{user}"
        if self.trap == "verbosity":
            rating = rating or (len(text) > len(question.answer) and luck.random() < 0.8)
        if self.trap == "flippers" and user % 10 == 0:
            rating = not satisfied
        if self.trap == "sybils" and luck.random() < 0.5:
            name, rating, corrected = f"sybil-{luck.randrange(USERS // 20)}", not fine, False
        return {
            "id": f"c{cycle}-t{i}",
            "timestamp": (START + cycle * CYCLE + timedelta(seconds=60 * i)).isoformat(),
            "user_id": name,
            "messages": [{"role": "user", "content": question.prompt}],
            "response": text,
            "model": "m",
            "model_version": version,
            "consent": True,
            "slice": question.slice,
            "feedback": float(rating),
            "correction": question.answer if not fine and corrected else None,
            "reference": question.answer if reviewed else None,
        }

    def _user(self, luck: random.Random, fine: bool) -> tuple[bool, int]:
        """Draw the user of a request (Zipf 1) and whether he is satisfied. Busy users are satisfied a little more often than others."""
        user = min(USERS - 1, int(USERS ** luck.random()) - 1)
        mood = luck.random()
        busy = user < USERS // 10
        return (fine or (busy and mood < 0.1)) and not (fine and not busy and mood < 0.05), user
