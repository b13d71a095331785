"""Decoded rows with about 1 KB of text each, by the kind of text, for the speed of the masking (`benchmarks/privacy.py`)."""

from __future__ import annotations

import json
import random
from typing import Any

from privacy_texts import labelled

SIZE = 1024
"""Characters of the texts of a row, about."""
_PROSE = (
    "The library opens late on Thursdays because the staff meets in the morning. ",
    "She asked whether the second draft keeps the argument of the first, and what it leaves out. ",
    "Mix the flour with the butter, add a pinch of salt, and let the dough rest for an hour. ",
    "Der Zug hält nicht mehr in jedem Dorf, deshalb nehmen viele am Morgen das Rad. ",
    "On ne sait pas encore si la salle est assez grande pour tout le monde. ",
    "오늘은 바람이 불어서 산책하기 좋은 날이다. ",
    "Is there a simple way to explain how tides follow the moon, without any formula? ",
)
_CODE = (
    "def total(items: list[Item]) -> float:\n    return sum(item.price * item.count for item in items if not item.returned)\n\n",
    "class Cache:\n    def __init__(self, size: int = 128) -> None:\n        self._entries: dict[str, Entry] = {}\n\n",
    "for (const row of rows) {\n  if (row.status !== 'done') { queue.push(row.id); }\n}\n",
    "SELECT name, count(*) AS n FROM orders WHERE created > '2024-05-01' GROUP BY name ORDER BY n DESC LIMIT 10;\n",
    "try:\n    token = tokens.pop()\nexcept IndexError as error:\n    raise ParseError(f'line {number}: {error}') from error\n",
    "    assert result.shape == (3, 224, 224), 'the picture has another size'\n",
)
_LOG = (
    "2025-11-03T08:15:30.123456Z INFO worker-3 took 132 ms, 4096 rows\n",
    "10.0.3.17 - - [12/May/2025:10:12:30] GET /api/v2/items/812344 200 5316\n",
    "trace=4bf92f3577b34da6a3ce929d0e0e4736 span=00f067aa0ba902b7 retry 2 of 5\n",
)


def _text(rng: random.Random, sentences: tuple[str, ...], size: int) -> str:
    text = ""
    while len(text) < size:
        text += rng.choice(sentences)
    return text


def _asked(text: str) -> dict[str, Any]:
    half = len(text) // 2
    said = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": text[:half]}]
    return {"messages": json.dumps(said, ensure_ascii=False), "answer": text[half:]}


def _conversation(rng: random.Random) -> dict[str, Any]:
    """Return 20 messages, of which ten belong to calls of tools."""
    said: list[dict[str, Any]] = []
    for turn in range(5):
        call = f"call_{rng.getrandbits(64):016x}"
        arguments = json.dumps({"order": f"A-{rng.randint(100, 999)}", "limit": 3})
        function = {"name": "find_order", "arguments": arguments}
        said += [
            {"role": "user", "content": rng.choice(_PROSE)[:60]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": call, "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": call, "content": json.dumps({"status": "late", "days": turn})},
            {"role": "assistant", "content": rng.choice(_PROSE)[:80]},
        ]
    return {"messages": json.dumps(said, ensure_ascii=False), "answer": rng.choice(_PROSE)}


def rows_of(kind: str, count: int, rng: random.Random) -> list[dict[str, Any]]:
    """Return rows of a kind: `prose`, `code`, `logs`, `tools` (20 messages) or `personal` (prose, 5 % with personal data)."""
    if kind == "tools":
        return [_conversation(rng) for _ in range(count)]
    sentences = {"prose": _PROSE, "personal": _PROSE, "code": _CODE, "logs": _LOG}[kind]
    texts = [_text(rng, sentences, SIZE) for _ in range(count)]
    if kind == "personal":
        data = [one.text for one in labelled(8 * count, 7) if one.group == "plain"]
        texts = [f"{text[:500]} {rng.choice(data)} {text[500:]}" if at % 20 == 0 else text for at, text in enumerate(texts)]
    return [_asked(text) for text in texts]


KINDS = ("prose", "code", "logs", "tools", "personal")


def size_of(row: dict[str, Any]) -> int:
    """Return the characters of the stored texts of a row."""
    return len(row["messages"]) + len(row["answer"])
