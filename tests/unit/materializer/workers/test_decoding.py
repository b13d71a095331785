"""What a worker decodes without keys, completed by the service, equals what the service decodes."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.data.decoding import Limits
from ratchet.contracts.data.senders import Role, Sender
from ratchet.contracts.errors import Retryable
from ratchet.contracts.fakes import FakeCompute
from ratchet.contracts.ids import digest
from ratchet.contracts.loop import PrivacySettings
from ratchet.materializer.dialects.admission import Admission
from ratchet.materializer.dialects.decode import BUILT_IN, decode_in_columns
from ratchet.materializer.privacy.masking import Masker
from ratchet.materializer.workers.decoding import LARGE, SMALL, DecodeBatch, DecodedBatch, decoded_each, unpacked, with_keys
from ratchet.runtime.secrets.pseudonyms import Subject
from tests.harness.libraries import LIBRARIES
from tests.unit.materializer.conftest import make_datasets, make_loop, signed
from tests.unit.materializer.records import T0, evaluation, span, spans

RECORDED = Path(__file__).parents[1] / "dialects" / "recorded"
LIMITS = Limits(now=T0 // 1000 + 10**14)
SENDERS = [None, Sender(name="shop", roles=(Role.TRACES,)), Sender(name="rater", roles=(Role.FEEDBACK,))]


def hide(subject: Subject, text: str) -> str:
    return f"{subject}-{text[::-1]}"


def is_signed(form: bytes, signature: str) -> bool:
    return bool(form) and len(signature) > 10


def batch_of(lines: Sequence[Any], form: str = "otlp-json", sender: Sender | None = None) -> RawBatch:
    data = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    return RawBatch("s", form, digest(data), "a file", lambda: io.BytesIO(data), sender)


def here(batch: RawBatch) -> DecodedBatch:
    masker = Masker(PrivacySettings())
    return DecodedBatch(*decode_in_columns(batch, LIMITS, BUILT_IN, Admission(batch.sender, is_signed, hide, masker.mask, masker)))


def there(batch: RawBatch) -> DecodedBatch:
    return with_keys(unpacked(DecodeBatch.of(PrivacySettings(), BUILT_IN)((batch, LIMITS))), hide, is_signed)


@pytest.mark.slow
@pytest.mark.parametrize("sender", SENDERS, ids=lambda sender: sender.name if sender else "operator")
def test_the_records_of_all_libraries(sender: Sender | None) -> None:
    rows = 0
    for library in LIBRARIES:
        with gzip.open(RECORDED / f"{library.name.replace(' ', '_')}.jsonl.gz") as file:
            records = [record for line in file for record in json.loads(line)["records"]]
        for form in sorted({form for form, _ in records}):
            lines = [record for its, record in records if its == form and not isinstance(record, str)]
            if form in ("otlp-json", "jsonl", "langfuse", "litellm"):
                found = here(batch_of(lines, form, sender))
                assert there(batch_of(lines, form, sender)) == found
                rows += len(found.decoded.traces) + len(found.decoded.feedback)
    assert rows or sender


def test_signed_spans_ratings_statements_and_bad_lines(tmp_path: Path) -> None:
    items = [
        spans(signed(tmp_path, span(1, "write to a.b@example.com", user__id="ann", session__id="s-1", ratchet__model_version="v1"))),
        spans(span(2, events=[evaluation("user_rating", 1.0, **{"user.id": "bob"})], user__id="bob")),
        spans(span(3, metadata__consent=False, user__id="cleo")),
        b"{not json",
        spans(span(4, user__id="ann")) | {"x": "y" * 100},
    ]
    jsonl = [
        {"id": "1", "timestamp": "2026-10-01T00:00:00Z", "messages": "q", "response": "a", "consent": True, "user": "ann", "session": "s"},
        {"consent": False, "user": "ann", "timestamp": "2026-10-01T00:00:00Z"},
        {"trace_id": "1", "rating": 1, "timestamp": "2026-10-01T00:00:00Z", "user": "bob"},
        {"id": "2"},
    ]
    for lines, form in ((items, "otlp-json"), (jsonl, "jsonl")):
        found = here(batch_of(lines, form))
        assert there(batch_of(lines, form)) == found
        assert found.decoded.traces or found.plain.positions
        assert found.decoded.bad
    assert any(row["verified"] for row in here(batch_of(items)).decoded.traces)


def padded(first: int, count: int = 400) -> list[Any]:
    """Records of more than SMALL bytes in all."""
    return [
        {
            "id": str(number),
            "timestamp": "2026-10-01T00:00:00Z",
            "messages": f"question {number}? " + "x" * 700,
            "response": str(number % 3),
            "consent": True,
            "reference": "1",
            "user": f"user {number % 20}",
        }
        for number in range(first, first + count)
    ]


@pytest.mark.slow
def test_the_lake_is_the_same_and_small_and_damaged_batches_are_decoded_here(tmp_path: Path) -> None:
    batches = [batch_of(padded(0), "jsonl"), batch_of(padded(1000, 3), "jsonl"), batch_of([*padded(2000), b"{bad"], "jsonl")]
    damaged = gzip.compress(b"".join(json.dumps(one).encode() + b"\n" for one in padded(3000)))[:-20]
    batches.append(RawBatch("s", "jsonl", digest(damaged), "cut", lambda: gzip.GzipFile(fileobj=io.BytesIO(damaged))))  # type: ignore[arg-type,return-value]
    batches.append(batch_of(padded(300), "jsonl"))  # overlaps with the first one
    loop, fake = make_loop(governance={"consent": "assumed"}), FakeCompute()
    one, other = make_datasets(tmp_path / "one", loop), make_datasets(tmp_path / "other", loop, fake)
    reports = [one.ingest(batch) for batch in batches]
    assert list(other.ingest_each(batches)) == reports
    assert len(set(fake.begun)) == 1
    assert len(fake.begun) == 6, "three batches, each decoded twice by the fake"
    for table in ("traces", "feedback", "quarantine", "consent"):
        assert one.lake.scan(table).drop("ingested").equals(other.lake.scan(table).drop("ingested")), table
    assert sum(report.traces.quarantined for report in reports) == 2


def test_a_batch_that_cannot_be_read_is_left_to_the_caller(tmp_path: Path) -> None:
    def gone() -> Any:
        raise FileNotFoundError("no such file")

    batch = RawBatch("s", "jsonl", digest(b""), "gone.jsonl", gone)
    with pytest.raises(Retryable, match=r"gone\.jsonl"):
        make_datasets(tmp_path, make_loop(), FakeCompute()).ingest(batch)


def test_a_large_batch_is_not_held_in_memory() -> None:
    size = 0

    class Endless(io.RawIOBase):
        def read(self, most: int = -1) -> bytes:
            nonlocal size
            size += min(most, 8 << 20)
            return b"x" * min(most, 8 << 20)

    batch = RawBatch("s", "jsonl", digest(b""), "large", lambda: Endless())  # type: ignore[arg-type,return-value]
    (begun,) = decoded_each(FakeCompute(), DecodeBatch.of(PrivacySettings(), BUILT_IN), [(batch, LIMITS)])
    assert begun.decoded is None
    assert LARGE < size <= LARGE + 1 + SMALL


@pytest.mark.slow
def test_workers_get_no_key(tmp_path: Path) -> None:
    """All that is sent to a worker, and what it returns, is without the secrets of the line."""
    sent: list[bytes] = []

    class Spy(FakeCompute):
        def map(self, function: Any, items: Any) -> Any:
            import pickle

            for item in items:
                sent.append(pickle.dumps((function, item)))
                sent.append(pickle.dumps(function(item.content)))
                yield function(item.content)

    datasets = make_datasets(tmp_path, make_loop(), Spy())
    list(datasets.ingest_each([batch_of(padded(0), "jsonl")]))
    keys = [key.secret for ring in (datasets.keys.users, datasets.keys.spans) for key in ring.keys().keys]
    assert len(sent) == 2
    assert len(keys) == 2
    assert not any(form in part for key in keys for form in (key.encode(), bytes.fromhex(key)) for part in sent)
