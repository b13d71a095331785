"""Which training prompts may be sent to a teacher, that is, to a third party. Pure.

Consent to training is checked before (governance.py). Sending to a third party has a consent of its own, which fails closed: for each user,
the newest statement counts for all traces of the user. A trace without a user speaks for itself. At one time, a refusal counts.
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
        """Each part has the columns source, id, time, user, refused and third_party of traces of the lake. `stated` is records.CONSENT.

        Of traces that are refused, only refusals count. Of the statements apart from traces, a consent counts only from the operator.
        """
        columns = ("source", "id", "time", "user", "third_party")
        counts = pl.col("third_party").is_not_null() & ~(pl.col("refused") & pl.col("third_party"))
        said = pl.concat([rows.filter(counts).select(columns) for rows in parts])
        apart = stated.filter(~pl.col("given") | pl.col("operator")).rename({"given": "third_party"})
        of = {subject: apart.filter(pl.col("subject") == subject.value) for subject in ConsentSubject}
        traces, users = of[ConsentSubject.TRACE_THIRD_PARTY], of[ConsentSubject.USER_THIRD_PARTY]
        own, people = said.filter(pl.col("user").is_null()), said.filter(pl.col("user").is_not_null())
        self._own = _newest([own, traces], ["source", "id"], "agrees")
        self._by_user = _newest([people, users.with_columns(user="id")], ["user"], "by_user")

    def agreeing(self, asked: pl.DataFrame, required: bool) -> pl.DataFrame:
        """Return source, id, time and prompt_id of the traces whose prompts may be sent.

        `asked` are traces with a prompt_id. Without `required`, all of them may be sent, except those whose users refuse.
        """
        placed = asked.join(self._by_user, on="user", how="left").join(self._own, on=["source", "id"], how="left")
        stated = pl.when(pl.col("agrees").not_()).then(False).otherwise(pl.coalesce("by_user", "agrees"))
        return placed.filter(stated.fill_null(not required)).select("source", "id", "time", "prompt_id")


def _newest(said: Sequence[pl.DataFrame], of: list[str], name: str) -> pl.DataFrame:
    rows = pl.concat([one.select(*of, "time", "third_party") for one in said])
    return rows.sort("time", pl.col("third_party").not_()).group_by(of).agg(pl.col("third_party").last().alias(name))


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
