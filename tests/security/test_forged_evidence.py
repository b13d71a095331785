"""Only spans that the router has signed are evidence of a rollout, whatever else is sent with valid credentials."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.senders import Role, Sender
from ratchet.contracts.serving import Evidence
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.lake.schemas import read_parquet
from ratchet.materializer.lake.tables import preferred
from ratchet.materializer.metrics import LakeMetrics
from ratchet.runtime.secrets.keyring import add_key, drop_old_keys
from ratchet.runtime.secrets.span_signature import SPAN_KEYS
from tests.security.test_roles import deliver
from tests.unit.materializer.conftest import make_datasets, make_loop, signed
from tests.unit.materializer.records import T0, attribute, batch, evaluation, log, logs, span, spans

SINCE = datetime.fromtimestamp(T0 / 1e9, UTC)
ROUTER = Sender(name="router", roles=(Role.ROUTER,))
APPLICATION = Sender(name="shop", roles=(Role.TRACES, Role.FEEDBACK))
EVERYTHING = Sender(name="thief", roles=(Role.ROUTER, Role.OPERATOR))
"""A thief with all tokens, but without the key of the router."""


def evidence(folder: Path) -> Evidence:
    return LakeMetrics(folder / "lake").evidence("old", "new", SINCE, SINCE + timedelta(seconds=1))


def call(n: int, version: str, **more: Any) -> dict[str, Any]:
    return span(n, ratchet__model_version=version, gen_ai__conversation__id=f"s-{n}", **more)


@pytest.fixture
def datasets(tmp_path: Path) -> LakeDatasets:
    """Ten calls of each version that the router has signed: users like one of ten answers of the candidate, and eight of the champion."""
    datasets = make_datasets(tmp_path)
    genuine = [signed(tmp_path, call(n, "old" if n <= 10 else "new")) for n in range(1, 21)]
    deliver(datasets, tmp_path, ROUTER, [spans(*genuine)])
    likes = [log(n, evaluation("user_feedback", n <= 8 or n == 11, user__id=f"user-{n}")) for n in range(1, 21)]
    deliver(datasets, tmp_path, APPLICATION, [logs(*likes)])
    return datasets


@pytest.mark.parametrize("sender", [APPLICATION, EVERYTHING], ids=lambda sender: sender.name)
def test_two_thousand_forged_spans_with_ratings_change_nothing(datasets: LakeDatasets, tmp_path: Path, sender: Sender) -> None:
    before = evidence(tmp_path)
    assert (sum(total for _, total in before.candidate.rated), sum(total for _, total in before.champion.rated)) == (1, 8)
    forged = [call(n, "new" if n % 2 else "old", events=[evaluation("user_feedback", n % 2)]) for n in range(1000, 3000)]
    report = deliver(datasets, tmp_path, sender, [spans(*forged)])
    assert (report.traces.kept, report.traces.unsigned, report.feedback.kept) == (2000, 2000, 2000)
    assert evidence(tmp_path) == before


def _with(item: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    return item | {"attributes": [one for one in item["attributes"] if one["key"] != key] + [attribute(key, value)]}


REPLAYS: dict[str, Any] = {
    "another trace id": lambda item: item | {"traceId": f"{77_000:032x}"},
    "another span id": lambda item: item | {"spanId": f"{77_000:016x}"},
    "another version": lambda item: _with(item, "ratchet.model_version", "old"),
    "another user": lambda item: _with(item, "user.id", "mallory"),
    "another session": lambda item: _with(item, "gen_ai.conversation.id", "mallory"),
    "another time": lambda item: item | {"startTimeUnixNano": str(T0 + 1_000)},
    "another duration": lambda item: item | {"endTimeUnixNano": str(T0 + 1)},
    "an error": lambda item: item | {"status": {"code": 2}},
    "a refusal": lambda item: _with(item, "ratchet.refused", True),
    "another origin": lambda item: _with(item, "ratchet.origin", "probe"),
    "another answer": lambda item: _with(item, "gen_ai.output.messages", "x"),
    "an attribute more": lambda item: _with(item, "gen_ai.usage.input_tokens", 1),
    "an event more": lambda item: item | {"events": [evaluation("user_feedback", 1)]},
    "another key": lambda item: _with(item, "ratchet.signature", "2:" + "0" * 64),
    "no HMAC": lambda item: _with(item, "ratchet.signature", "1"),
    "an odd key": lambda item: _with(item, "ratchet.signature", "\u0661:é"),
}


def test_a_changed_replay_of_a_signed_span_is_no_evidence_and_does_not_keep_out_the_original(tmp_path: Path) -> None:
    """The replays arrive first: their sender knows the id from the response header before the router has exported the span."""
    datasets = make_datasets(tmp_path)
    genuine = [signed(tmp_path, call(n, "new")) for n in range(1, len(REPLAYS) + 1)]
    replays = [change(item) for change, item in zip(REPLAYS.values(), genuine, strict=True)]
    first = deliver(datasets, tmp_path, APPLICATION, [spans(*replays)])
    assert (first.traces.read, first.traces.unsigned) == (len(REPLAYS), first.traces.kept)
    found = evidence(tmp_path)
    assert (found.candidate.requests, found.champion.requests) == (0, 0)
    report = deliver(datasets, tmp_path, ROUTER, [spans(*genuine)])
    assert (report.traces.kept, report.traces.unsigned) == (len(REPLAYS), 0)
    original = evidence(tmp_path)
    assert (original.candidate.requests, original.candidate.errors, original.candidate.refused) == (len(REPLAYS), 0, 0)
    again = deliver(datasets, tmp_path, ROUTER, [spans(*genuine), spans(*genuine)])
    assert (again.traces.kept, again.traces.duplicate) == (0, 2 * len(REPLAYS))
    deliver(datasets, tmp_path, APPLICATION, [spans(*replays[::-1])])
    assert evidence(tmp_path) == original
    rows = preferred(datasets.lake.scan("traces"))
    assert rows.filter(rows["id"].is_in([f"{n:032x}:{n:016x}" for n in range(1, len(REPLAYS) + 1)]))["verified"].all()


def test_a_file_of_signed_spans_is_evidence_and_one_of_other_spans_is_not(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(batch(spans(signed(tmp_path, call(1, "new")), call(2, "new"))))
    assert evidence(tmp_path).candidate.requests == 1


def test_a_former_key_verifies_until_it_is_dropped(tmp_path: Path) -> None:
    datasets, keys = make_datasets(tmp_path), tmp_path / SPAN_KEYS
    first, second = (signed(tmp_path, call(n, "new")) for n in (1, 2))
    add_key(keys, SINCE)
    third = signed(tmp_path, call(3, "new"))
    deliver(datasets, tmp_path, ROUTER, [spans(first, third)])
    assert evidence(tmp_path).candidate.requests == 2
    drop_old_keys(keys)
    deliver(datasets, tmp_path, ROUTER, [spans(second)])
    assert evidence(tmp_path).candidate.requests == 2


OTHER = Sender(name="other", roles=(Role.FEEDBACK,))
TRUSTED = Sender(name="panel", roles=(Role.FEEDBACK,), trusted=True)


def rate(n: int, value: float, at: int = T0 + 99_000, **more: str) -> dict[str, Any]:
    return logs(log(n, evaluation("user_feedback", value, at=at, **more)))


@pytest.mark.parametrize(
    ("sender", "rating"),
    [
        (APPLICATION, rate(12, 1, user__id="mallory")),
        (APPLICATION, rate(12, 1)),
        (OTHER, rate(12, 1, user__id="user-12")),
        (OTHER, rate(12, 1, at=T0 + 10, user__id="user-12")),
    ],
    ids=["another user", "no user", "another credential", "another credential, same time"],
)
def test_a_rating_of_anybody_else_neither_counts_nor_replaces_that_of_the_user(
    datasets: LakeDatasets, tmp_path: Path, sender: Sender, rating: dict[str, Any]
) -> None:
    before = evidence(tmp_path)
    assert deliver(datasets, tmp_path, sender, [rating]).feedback.kept == 1
    assert evidence(tmp_path) == before


def test_the_user_may_change_a_rating_and_a_trusted_sender_may_add_one(datasets: LakeDatasets, tmp_path: Path) -> None:
    deliver(datasets, tmp_path, APPLICATION, [rate(12, 1, user__id="user-12")])
    assert sum(total for _, total in evidence(tmp_path).candidate.rated) == 2
    deliver(datasets, tmp_path, TRUSTED, [rate(13, 1, user__id="panel-1")])
    found = evidence(tmp_path).candidate.rated
    assert (sum(n for n, _ in found), sum(total for _, total in found)) == (11, 3)


def test_labels_use_the_same_rule_and_count_what_they_ignore(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(rewards=[{"name": "user_feedback"}]))
    asked = [span(n, prompt=f"what is {n}?", metadata__reference=f"{n}") for n in range(1, 41)]
    deliver(datasets, tmp_path, APPLICATION, [spans(*asked)])
    events = [log(n, evaluation("user_feedback", 1, user__id=f"user-{n}")) for n in range(1, 41)]
    forged = [log(n, evaluation("user_feedback", 0, at=T0 + 99_000, user__id="mallory")) for n in range(1, 41)]
    forged += [log(n, evaluation("user_correction", text="wrong", user__id="mallory")) for n in range(1, 41)]
    deliver(datasets, tmp_path, APPLICATION, [logs(*events, *forged)])
    deliver(datasets, tmp_path, OTHER, [rate(n, 0, user__id=f"user-{n}") for n in range(1, 41)])
    snapshot = datasets.freeze("snapshot", SINCE + timedelta(days=3650), datasets.edition(1))
    samples = read_parquet(datasets.artifacts.get(snapshot.samples))
    assert set(samples["reward"]) == {1.0}
    assert set(samples["origin"]) == {"traffic"}
    assert (snapshot.counts["feedback:not_the_user"], snapshot.counts["feedback:other_sender"]) == (80, 40)
