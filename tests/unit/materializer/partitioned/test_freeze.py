"""Tests that an edition and a snapshot do not depend on how many partitions the lake is divided into."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import HoldoutEdition, Snapshot
from ratchet.contracts.loop import Loop
from ratchet.materializer import usable
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.partitioned import partitions
from tests.property_examples import examples
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import batch, evaluation, logs, raw, span, spans
from tests.unit.materializer.small_datasets import HELD, LATER, TRAIN

WORDS = [
    "invoice",
    "order",
    "shipment",
    "account",
    "catalog",
    "billing",
    "refund",
    "customer",
    "address",
    "delivery",
    "payment",
    "contract",
]
MANY = 10**6
GOLDEN = [{"prompt": "show me the order of the shipment in the account please", "reference": "7"}]


def _asked(draw: random.Random) -> str:
    """Return a random question. Many are equal to one of six questions, or differ from one of them in a word."""
    few = " ".join(random.Random(draw.randrange(6)).choices(WORDS, k=12))
    kind = draw.random()
    if kind < 0.4:
        return few
    if kind < 0.6:
        return f"{few} {draw.choice(WORDS)}"
    return GOLDEN[0]["prompt"] if kind < 0.65 else " ".join(draw.choices(WORDS, k=draw.randrange(3, 20)))


def _record(draw: random.Random, number: int) -> dict[str, Any]:
    """Return a record of JSON Lines, as traffic may have it: also without a user, an answer or consent, and with all kinds of feedback."""
    more: dict[str, Any] = {
        "user_id": draw.choice([None, *(f"user-{n}" for n in range(4))]),
        "session_id": draw.choice([None, *(f"session-{n}" for n in range(5))]),
        "response": draw.choice(["7", "8", "the answer", ""]),
        "consent": draw.random() < 0.9,
        "reference": draw.choice([None, None, "7", "9"]),
        "feedback": draw.choice([None, 0, 1]),
        "correction": draw.choice([None, None, None, "7", "8"]),
        "signals": draw.choice([None, ["copied"], ["edited"]]),
        "slice": draw.choice([None, "a", "b"]),
        "tools": draw.choice([None, None, [{"type": "function", "function": {"name": "find", "parameters": {}}}]]),
        "response_id": f"r-{draw.randrange(60)}",
    }
    time = 1_790_000_000 + draw.randrange(40_000)
    known = {name: value for name, value in more.items() if value is not None}
    return {"id": f"j-{number}", "timestamp": time, "model": "m", "messages": _asked(draw), **known}


def traffic(datasets: LakeDatasets, seed: int, count: int) -> None:
    """Ingest records, and feedback on them that comes later."""
    draw = random.Random(seed)
    for begin in range(0, count, 40):
        lines = [json.dumps(_record(draw, number)) for number in range(begin, min(begin + 40, count))]
        datasets.ingest(raw("\n".join(lines).encode() + b"\n", "app", "jsonl"))
    items = [span(n, _asked(draw), draw.choice(["A: 7", "A: 8"]), metadata__reference=draw.choice([None, "7"])) for n in range(12)]
    datasets.ingest(batch(spans(*items, span(900, HELD, metadata__reference="1"), span(901, TRAIN[0], metadata__reference="1"))))
    late = [evaluation("user_feedback", n % 2, user__id=f"user-{n}", gen_ai__response__id=f"r-{n + n % 3}") for n in range(9)]
    datasets.ingest(batch(logs(*(one | {"eventName": one["name"]} for one in late))))


def _both(datasets: LakeDatasets) -> tuple[HoldoutEdition, bytes, Snapshot, bytes, bytes]:
    datasets.prepare()
    edition = datasets.edition(1)
    snapshot = datasets.freeze("s", LATER, edition)
    get = datasets.artifacts.get
    return edition, get(edition.prompts), snapshot, get(snapshot.samples), get(snapshot.prompts)


def _loop(folder: Path, golden: bool, **more: Any) -> Loop:
    (folder / "golden.jsonl").write_text("".join(json.dumps(row) + "\n" for row in GOLDEN))
    return make_loop(holdout={"fraction": 0.4, "max_size": 5, **({"golden": "golden.jsonl"} if golden else {})}, **more)


@pytest.mark.slow
@settings(
    max_examples=examples(3, 10),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 10_000), rows=st.sampled_from([1, 7, 40]), golden=st.booleans(), wait=st.sampled_from([0, 7]))
def test_partitions_change_no_edition_and_no_snapshot(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rows: int, golden: bool, wait: int
) -> None:
    made = tmp_path_factory.mktemp("lake")
    more = {"snapshot": {"newcomer_days": wait}, "signals": {"use": ["copied", "edited"]}}
    traffic(make_datasets(made / "one", _loop(made, golden, **more)), seed, 100)
    shutil.copytree(made / "one", made / "two")
    found = []
    for folder, size in (("one", MANY), ("two", rows)):
        shutil.copy(made / "golden.jsonl", made / folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(partitions, "ROWS", size)
            patch.setattr(partitions, "_WAITING", size)
            patch.setattr(usable, "_FEEDBACK", size)
            found.append(_both(make_datasets(made / folder, _loop(made, golden, **more))))
    assert found[0] == found[1]
    assert found[0][2].counts["considered"] > 50
