"""A refusal about a whole trace counts for all its model calls, in whichever requests they arrive."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from ratchet.materializer.consent import settle
from ratchet.materializer.lake.tables import preferred
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import attribute, batch, span, spans

TRACE = "1" * 32


def call(n: int, trace: str = TRACE) -> dict[str, Any]:
    return span(n, metadata__consent=None) | {"traceId": trace, "parentSpanId": f"{99:016x}"}


def root(key: str, parent: str = "", value: Any = False) -> dict[str, Any]:
    made = span(99, gen_ai__operation__name="invoke_agent", metadata__consent=None) | {"traceId": TRACE, "parentSpanId": parent}
    made["attributes"].append(attribute(key, value))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize(("key", "parent"), [("langfuse.trace.metadata.consent", "7" * 16), ("consent", "")])
def test_the_order_of_requests_does_not_matter(tmp_path: Path, order: tuple[int, ...], key: str, parent: str) -> None:
    datasets = make_datasets(tmp_path, make_loop(governance={"consent": "assumed"}))
    requests = spans(call(1)), spans(root(key, parent)), spans(call(2), call(3, "2" * 32))
    after = False
    for place in order:
        report = datasets.ingest(batch(requests[place]))
        assert datasets.ingest(batch(requests[place])) == report
        assert report.traces.adds_up
        assert report.feedback.adds_up
        kept = datasets.lake.scan("traces").filter(~datasets.lake.scan("traces")["id"].str.starts_with("2"))["messages"].drop_nulls()
        after = after or place == 1
        if after and order[0] == 1:
            assert kept.is_empty()  # nothing is stored once the refusal is known
    rows = preferred(settle(datasets.lake.scan("traces"), datasets.lake.scan("consent"))).to_dicts()
    assert {row["id"].partition(":")[0][0]: row["refused"] for row in rows} == {"1": True, "2": False}
    assert sum(row["refused"] for row in rows) == 2


def test_a_consent_of_the_root_and_a_refusal_of_a_step_say_nothing_about_other_requests(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(governance={"consent": "assumed"}))
    datasets.ingest(batch(spans(root("consent", "", True), root("metadata.consent", "7" * 16) | {"spanId": f"{98:016x}"})))
    datasets.ingest(batch(spans(call(1))))
    assert datasets.lake.scan("traces")["messages"].drop_nulls().len() == 1
