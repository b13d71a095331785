"""Which training prompts may be sent to a teacher, that is, to a third party. Pure.

Consent to training is checked before (governance.py). Sending to a third party has a consent of its own, which fails closed: for each user,
the newest statement counts. A trace without a user speaks for itself. At one time, a refusal counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import orjson
import polars as pl

from ratchet.contracts.data.records import ConsentSubject
from ratchet.contracts.data.teaching import Sendable, SendablePrompt

NO_CONSENT = "no user consents to sending them to a third party"
DEVELOPMENT = "they are development prompts, which decide how long to train"
TOOLS = "they call tools"


class Statements:
    """What users have said about sending their prompts to a third party."""

    def __init__(self, parts: Iterable[pl.DataFrame], stated: pl.DataFrame) -> None:
        """Each part has the columns source, id, time, user, sender, refused and third_party of traces. `stated` is records.CONSENT.

        Of traces that are refused, only refusals count.
        """
        columns = ("source", "id", "time", "user", "sender", pl.col("third_party").alias("given"))
        counts = pl.col("third_party").is_not_null() & ~(pl.col("refused") & pl.col("third_party"))
        said = pl.concat([rows.filter(counts).select(columns) for rows in parts])
        said = said.with_columns(pl.col("sender").is_null().alias("operator"))  # of a file of the operator
        of = {subject: stated.filter(pl.col("subject") == subject.value) for subject in ConsentSubject}
        people = [said.filter(pl.col("user").is_not_null()), of[ConsentSubject.USER_THIRD_PARTY].with_columns(user="id")]
        alone = [said.filter(pl.col("user").is_null()), of[ConsentSubject.TRACE_THIRD_PARTY]]
        self._people, self._traces = _Newest(people, ["user"]), _Newest(alone, ["source", "id"])

    def agreeing(self, asked: pl.DataFrame, required: bool) -> pl.DataFrame:
        """Return source, id, time and prompt_id of the traces whose prompts may be sent.

        `asked` are traces with a prompt_id. Without `required`, all of them may be sent, except those that are refused for their user or
        for themselves.
        """
        placed = self._traces.joined(self._people.joined(asked, "by_user"), "by_trace")
        agrees = pl.when(pl.col("by_trace").not_()).then(False).otherwise(pl.coalesce("by_user", "by_trace"))
        return placed.filter(agrees.fill_null(not required)).select("source", "id", "time", "prompt_id")


class _Newest:
    """The newest refusal and the newest consents of each user or trace. A consent counts as in consent.py: from the operator for all, from
    another sender for the traces of this sender, because nobody else may lift a refusal."""

    def __init__(self, said: Sequence[pl.DataFrame], of: list[str]) -> None:
        rows = pl.concat([one.select(*of, "time", "sender", "operator", "given") for one in said])
        given, operator = pl.col("given"), pl.col("operator")
        parts = (("_no", of, ~given), ("_yes", of, given & operator), ("_yes_of_sender", [*of, "sender"], given & ~operator))
        self._newest = [(keys, rows.filter(which).group_by(keys).agg(pl.col("time").max().alias(name))) for name, keys, which in parts]

    def joined(self, traces: pl.DataFrame, name: str) -> pl.DataFrame:
        """Return the traces with the column `name`: whether the newest statement is a consent; null without one that counts."""
        for keys, newest in self._newest:
            traces = traces.join(newest, on=keys, how="left", maintain_order="left")
        yes, no = pl.max_horizontal("_yes", "_yes_of_sender"), pl.col("_no")
        state = pl.when(no.is_null() & yes.is_null()).then(None).otherwise((yes > no).fill_null(no.is_null()))
        return traces.with_columns(state.alias(name)).drop("_no", "_yes", "_yes_of_sender")


def sendable(
    prompts: pl.DataFrame,
    agreed: pl.DataFrame,
    trained: Collection[str],
    mask: Callable[[str], str],
    provable: bool,
) -> Sendable:
    """Return the prompts that may be sent, and why the others may not.

    Args:
        prompts: The training prompts of a snapshot, records.PROMPTS.
        agreed: The result of `Statements.agreeing` for the traces that asked them.
        trained: prompt_id of the prompts that are trained on, and not kept for development.
        mask: Masks a prompt (JSON) by the rules of the lake as they are now.
        provable: Whether a verifiable scorer of the line needs no right answer.
    """
    newest = (
        agreed.sort("time", "source", "id").group_by("prompt_id").agg(pl.concat_str("source", "id", separator="/").last().alias("trace"))
    )
    traces, able, found, refused = dict(newest.iter_rows()), set(trained), list[SendablePrompt](), dict[str, str]()
    for row in prompts.sort("prompt_id").iter_rows(named=True):
        why = TOOLS if orjson.loads(row["tools"] or "[]") else NO_CONSENT if row["prompt_id"] not in traces else None
        why = why or (DEVELOPMENT if row["prompt_id"] not in able else None)
        if why is not None:
            refused[row["prompt_id"]] = why
            continue
        found.append(
            SendablePrompt(
                prompt_id=row["prompt_id"],
                trace=traces[row["prompt_id"]],
                messages=tuple(orjson.loads(mask(row["prompt"]))),
                slice=row["slice"],
                answered=row["reference"] is not None,
            )
        )
    return Sendable(prompts=tuple(found), refused=refused, provable=provable)
