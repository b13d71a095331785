"""Three tasks on which no constant of the project was tuned: extraction to JSON, sorting of numbers, and routing of tickets.

Each generator returns distinct (prompt, answer) pairs of one kind of request. All are determined by seeds.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable

Pairs = list[tuple[str, str]]

NAMES = (
    "anna",
    "boris",
    "clara",
    "deniz",
    "elena",
    "farid",
    "greta",
    "hugo",
    "ines",
    "jonas",
    "karin",
    "luis",
    "mira",
    "nils",
    "olga",
    "petr",
)
PLACES = ("berlin", "paris", "rome", "oslo", "madrid", "vienna", "prague", "lisbon", "dublin", "athens", "warsaw", "zurich")
ITEMS = ("lamps", "chairs", "desks", "shelves", "rugs", "clocks", "vases", "stools")
WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
EXTRACT: dict[str, tuple[str, ...]] = {
    "order": ("{name} from {city} orders {word} {item}", "please send {word} {item} to {name} in {city}"),
    "return": ("{name} sends {word} {item} back from {city}", "{word} {item} come back from {name}, {city}"),
    "delay": ("the {word} {item} for {name} in {city} are late", "{name} of {city} still waits for {word} {item}"),
    "cancel": ("{name} in {city} no longer wants {word} {item}", "stop the {word} {item} of {name}, {city}"),
}
SORT = ("ascending", "descending", "largest", "smallest")
ROUTE: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "billing": (
        "finance",
        ("invoice {n} shows a wrong sum", "i was charged twice for order {n}", "where is my refund for {n}"),
        ("card", "bank", "cash"),
    ),
    "access": ("identity", ("account {n} is locked", "user {n} cannot log in", "reset the password of {n}"), ("mail", "phone", "app")),
    "shipping": ("logistics", ("parcel {n} is lost", "box {n} arrived broken", "when does parcel {n} come"), ("truck", "ship", "plane")),
    "outage": ("platform", ("server {n} is down", "node {n} does not answer", "disk {n} is full"), ("east", "west", "north")),
}
URGENT = {"": "P3", "today": "P2", "right now": "P1", "some day": "P4"}


def extract(kind: str) -> Pairs:
    """Sentences about orders, and the JSON object of their parts with the number as digits."""
    found = []
    for phrase, name, city, (number, word), item in itertools.product(EXTRACT[kind], NAMES, PLACES, enumerate(WORDS, 2), ITEMS):
        answer = json.dumps({"event": kind, "name": name, "city": city, "n": number, "item": item})
        found.append((phrase.format(name=name, city=city, word=word, item=item), answer))
    return found


def sort(kind: str) -> Pairs:
    """Four different numbers of two digits, to be put in order, or of which one is asked."""
    draw = random.Random(f"sort-{kind}")
    found = {}
    while len(found) < 6000:
        numbers = draw.sample(range(10, 40), 4)
        ordered = sorted(numbers, reverse=kind == "descending")
        answer = {"largest": [max(numbers)], "smallest": [min(numbers)]}.get(kind, ordered)
        found[f"{kind} {' '.join(map(str, numbers))}"] = " ".join(map(str, answer))
    return list(found.items())


def route(kind: str) -> Pairs:
    """Tickets, and the queue with channel and priority."""
    queue, phrases, channels = ROUTE[kind]
    rows = itertools.product(phrases, channels, URGENT.items(), range(100, 300))
    return [
        (f"{channel}: {phrase.format(n=n)} {urgency}".strip(), f"queue={queue} via={channel} id={n} {priority}")
        for phrase, channel, (urgency, priority), n in rows
    ]


KINDS: dict[str, tuple[Callable[[str], Pairs], tuple[str, ...], tuple[str, ...], dict[float, int]]] = {
    "extract": (extract, tuple(EXTRACT), ("delay", "cancel"), {0.6: 450}),
    "sort": (sort, SORT, ("descending", "largest"), {0.6: 200}),
    "route": (route, tuple(ROUTE), ("shipping", "outage"), {0.6: 200}),
}
"""Name of a task -> its generator, its kinds of request, those that users began to request after the base was built, and the base's
steps."""
