"""Consent as a state: whether a trace may be used, from all statements about it.

The statement with the newest time counts, and a refusal counts against a consent of the same time. A refusal counts from every sender that
may send one. A consent counts only from the operator or from the credential that sent the trace, because nobody else may lift a refusal.
The functions depend on the set of statements only, so the order in which records arrive changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from ratchet.contracts.data.records import ConsentSubject

_KEYS: Mapping[ConsentSubject, tuple[str, ...]] = {
    ConsentSubject.TRACE: ("source", "id"),
    ConsentSubject.RESPONSE: ("source", "response_id"),
    ConsentSubject.SESSION: ("session",),
    ConsentSubject.USER: ("user",),
}
"""Subject of a statement -> columns of the traces to which it applies. The last one is compared with the statement's `id`. Pseudonyms of
users and sessions are the same in all sources."""


def settle(traces: pl.DataFrame, statements: pl.DataFrame) -> pl.DataFrame:
    """Return `traces` with the column `consent` set to the present state, and the new column `refused`.

    `traces` (records.TRACES) has all rows of each trace. `statements` is records.CONSENT. A trace about which nobody said anything has
    neither consent nor a refusal.
    """
    at = pl.coalesce("consent_time", "time")
    own = pl.when("consent").then(at).max().over("source", "id", "sender")  # a trace may have two rows, see `preferred`
    settled = traces.with_columns(own.alias("_yes_own"))
    no: list[str] = []
    yes = ["_yes_own"]
    for subject, columns in _KEYS.items():
        said = statements.filter(pl.col("subject") == subject.value).rename({"id": "_id"})
        parts = (
            (no, said.filter(~pl.col("given")), ()),
            (yes, said.filter(pl.col("given") & pl.col("operator")), ()),
            (yes, said.filter(pl.col("given") & ~pl.col("operator")), ("sender",)),
        )
        for number, (names, part, more) in enumerate(parts):
            if not part.is_empty():
                name = f"_{subject.value}_{number}"
                names.append(name)
                settled = _joined(settled, part.rename({"_id": columns[-1]}), [*columns, *more], name)
    last_yes = pl.max_horizontal(yes)
    last_no = pl.max_horizontal(no) if no else pl.lit(None, dtype=settled["time"].dtype)
    agreed = last_yes.is_not_null() & (last_no.is_null() | (last_yes > last_no))
    stated = settled.with_columns(agreed.fill_null(False).alias("consent"), (last_no.is_not_null() & ~agreed).alias("refused"))
    return stated.drop([*no, *yes])


def _joined(traces: pl.DataFrame, part: pl.DataFrame, keys: Sequence[str], name: str) -> pl.DataFrame:
    latest = part.group_by(keys).agg(pl.col("time").max().alias(name))
    return traces.join(latest, on=list(keys), how="left", nulls_equal=True, maintain_order="left")  # null: a sender without a credential


ERASURE = "ratchet.erase"
"""Source of the statements of `ratchet erase`. No source of a loop file can have this name."""


@dataclass(frozen=True)
class ErasedPeople:
    """Pseudonyms whose records are not stored any more, because an operator has erased their data."""

    users: frozenset[str] = frozenset()
    sessions: frozenset[str] = frozenset()

    def includes(self, user: str | None, session: str | None = None) -> bool:
        """Return whether a record of this user or session must not be stored."""
        return user in self.users or session in self.sessions

    def are_named_in(self, content: bytes) -> bool:
        """Return whether the masked bytes of a record contain one of the pseudonyms."""
        return any(one.encode() in content for one in (*self.users, *self.sessions))


def erased_people(statements: pl.DataFrame) -> ErasedPeople:
    """Return the users and sessions that `ratchet erase` has erased. Only a newer consent from the operator lifts an erasure."""
    no = statements.filter((pl.col("source") == ERASURE) & ~pl.col("given"))
    if no.is_empty():
        return ErasedPeople()
    no = no.group_by("subject", "id").agg(pl.col("time").max().alias("no"))
    yes = statements.filter(pl.col("given") & pl.col("operator")).group_by("subject", "id").agg(pl.col("time").max().alias("yes"))
    left = no.join(yes, on=["subject", "id"], how="left").filter(pl.col("yes").is_null() | (pl.col("no") >= pl.col("yes")))
    found = {kind: frozenset(left.filter(pl.col("subject") == kind.value)["id"].to_list()) for kind in ConsentSubject}
    return ErasedPeople(found[ConsentSubject.USER], found[ConsentSubject.SESSION])


def refusing_users(statements: pl.DataFrame) -> list[str]:
    """Return the pseudonyms of the users who refuse the use of all that they send. Only the operator can lift such a refusal."""
    said = statements.filter(pl.col("subject") == ConsentSubject.USER.value)
    no = said.filter(~pl.col("given")).group_by("id").agg(pl.col("time").max().alias("no"))
    yes = said.filter(pl.col("given") & pl.col("operator")).group_by("id").agg(pl.col("time").max().alias("yes"))
    last = no.join(yes, on="id", how="left")
    return sorted(last.filter(pl.col("yes").is_null() | (pl.col("no") >= pl.col("yes")))["id"].to_list())


def spoken(feedback: pl.DataFrame, users: Sequence[str]) -> pl.DataFrame:
    """Return the feedback of all raters but `users`."""
    return feedback.filter(~pl.col("rater").is_in(users).fill_null(False))


def withdrawn_texts(
    traces: Callable[[], Iterable[pl.DataFrame]], feedback: pl.DataFrame, users: Sequence[str]
) -> tuple[set[bytes], set[str]]:
    """Return keys of the prompts, and the references, that come from refused traces or refusing users, and from nowhere else.

    Each call of `traces` returns the result of `settle` in parts, with keys of texts (texts.py). `feedback` is records.FEEDBACK, whose
    column `batch` may be missing. A text that somebody else has also given is not returned.
    """
    columns = ("source", "id", "response_id", "messages", "reference")
    refused = pl.concat([part.filter("refused").select(columns) for part in traces()])
    links = [
        feedback.join(refused.select("source", pl.col(column).alias(key)).drop_nulls().unique(), on=["source", key], how="semi")
        for column, key in (("id", "trace_id"), ("response_id", "response_id"))
    ]
    gone = pl.concat([*links, feedback.filter(pl.col("rater").is_in(users).fill_null(False))]).unique()
    left = feedback.join(gone, on=feedback.columns, how="anti", nulls_equal=True)
    prompts: set[bytes] = set(refused["messages"].drop_nulls().to_list())
    references = (_texts(refused["reference"]) | _texts(gone["text"])) - _texts(left["text"])
    for part in traces():
        others = part.filter(~pl.col("refused"))
        prompts -= set(others["messages"].to_list())
        references -= _texts(others["reference"])
    return prompts, references


def _texts(column: pl.Series) -> set[str]:
    return set(column.drop_nulls().to_list())
