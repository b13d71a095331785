"""Live evidence per model version from the traces and feedback in the lake. Implements the `Metrics` port.

The module only counts and groups; the rollout judge evaluates the evidence. User ids define the groups and are not part of the
result: a hash of it tells which figures of two windows belong to one person, and is not stored.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, In, LessThan

from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.serving import Arm, Evidence, latency_buckets
from ratchet.materializer.labels.credible import credible
from ratchet.materializer.lake.places.place import LakePlace
from ratchet.materializer.lake.tables import Lake

_TRACE_COLUMNS = (
    *("source", "id", "time", "user", "session", "response_id"),
    *("model_version", "status", "latency_ms", "verified", "finish_reason"),
)

_RATING_COLUMNS = ("source", "trace_id", "response_id", "rater", "kind", "time", "ingested", "sender", "trusted", "value")


class LakeMetrics:
    """Reads evidence from the line's lake."""

    def __init__(self, place: LakePlace | Path) -> None:
        self.lake = Lake(place)

    def evidence(self, champion: str, candidate: str, since: datetime, until: datetime) -> Evidence:
        """Return counts of the real traffic that began in [since, until), and of the ratings on it so far.

        `champion` and `candidate` are version tags. Only traces that the router has signed count. Requests with status `refused` count as
        refusals and not as errors: the request may be invalid, or the version may reject what the other one accepts.
        """
        window = And(
            And(GreaterThanOrEqual("time", _iso(since)), LessThan("time", _iso(until))),
            And(EqualTo("origin", "traffic"), In("model_version", {champion, candidate})),
        )
        signed = self.lake.scan("traces", _TRACE_COLUMNS, window).filter(pl.col("verified"))
        traces = signed.unique(["source", "id"], keep="first", maintain_order=True)  # content may have come later, in a row of its own
        rated = self._ratings(traces, since)
        return Evidence(since=since, until=until, champion=_arm(champion, traces, rated), candidate=_arm(candidate, traces, rated))

    def _ratings(self, traces: pl.DataFrame, since: datetime) -> pl.DataFrame:
        """Return the latest rating that counts of each rater on each of `traces`. The columns include model_version, person and value."""
        where = And(EqualTo("kind", FeedbackKind.RATING.value), GreaterThanOrEqual("time", _iso(since)))
        ratings = self.lake.scan("feedback", _RATING_COLUMNS, where)
        person = pl.coalesce("user", "session", "id").alias("person")
        subjects = traces.select("source", "id", "response_id", "model_version", "user", person)
        by_id = ratings.join(subjects.drop("response_id"), left_on=["source", "trace_id"], right_on=["source", "id"], how="inner")
        by_id = by_id.with_columns(pl.col("trace_id").alias("id"))
        rest = ratings.join(by_id, on=["source", "trace_id"], how="anti")
        named = subjects.filter(pl.col("response_id").is_not_null()).unique(["source", "response_id"], keep="first", maintain_order=True)
        by_response = rest.join(named, on=["source", "response_id"], how="inner")
        columns = ["source", "id", "rater", "kind", "time", "ingested", "sender", "trusted", "value", "model_version", "user", "person"]
        joined, _ = credible(pl.concat([by_id.select(columns), by_response.select(columns)]))
        return joined.sort("time", "value").unique(["source", "id", "rater"], keep="last", maintain_order=True)


def _arm(tag: str, traces: pl.DataFrame, rated: pl.DataFrame) -> Arm:
    own = traces.filter(pl.col("model_version") == tag)
    latencies = own.filter(pl.col("status") == "ok")["latency_ms"].drop_nulls()
    people = rated.filter(pl.col("model_version") == tag).group_by("person").agg(pl.len().alias("n"), pl.col("value").sum())
    people = people.sort("n", "value", "person")
    return Arm(
        tag=tag,
        requests=len(own),
        errors=int((own["status"] == "error").sum()),
        refused=int((own["status"] == "refused").sum()),
        cut=int(((own["status"] == "ok") & (own["finish_reason"] == "length")).sum()),
        sessions=own.select(pl.coalesce("session", "user", "id")).n_unique(),
        users=own.select(pl.coalesce("user", "session", "id")).n_unique(),
        latency_p50_ms=latencies.quantile(0.5, "linear"),
        latency_p95_ms=latencies.quantile(0.95, "linear"),
        rated=tuple((int(n), float(total)) for n, total in people.select("n", "value").iter_rows()),
        raters=tuple(f"{name:x}" for name in people["person"].hash()),
        latencies=latency_buckets(latencies),
    )


def _iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat()
