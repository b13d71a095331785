"""Records of made-up users, for backfills that must give the same by every engine."""

from __future__ import annotations

import json
import random


def made_up_lines(seed: int, count: int = 1500) -> bytes:
    """Return JSON Lines, 2 KB for each of `count` calls: e-mail addresses, references, ratings, refusals, and a bad line at the end.

    The ids of the calls of two seeds differ.
    """
    draw, lines = random.Random(seed), []
    for number in range(seed * count, (seed + 1) * count):
        words = " ".join(f"word{draw.randrange(10_000)}" for _ in range(150))
        lines.append(
            {
                "id": f"t{number}",
                "timestamp": "2026-10-01T00:00:00Z",
                "messages": f"{number}: {words}, asked by u{number % 70}@example.com",
                "response": f"A: {draw.randrange(3)}",
                "consent": draw.random() < 0.9,
                "reference": "A: 1" if draw.random() < 0.5 else None,
                "feedback": draw.randrange(2) if draw.random() < 0.3 else None,
                "user_id": f"u{number % 70}",
                "session_id": f"s{number // 3}",
            }
        )
    return "\n".join([json.dumps(line) for line in lines] + ["{bad"]).encode()
