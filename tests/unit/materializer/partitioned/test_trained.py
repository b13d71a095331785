"""Tests of the figures of a snapshot that are added up part by part."""

from __future__ import annotations

import polars as pl
import pytest

from ratchet.contracts.data.datasets import PromptGroup
from ratchet.materializer.partitioned.trained import Roots

KINDS = {
    "prompt_id": pl.String,
    "root_id": pl.String,
    "source": pl.String,
    "session": pl.String,
    "held": pl.Boolean,
    "excluded": pl.Boolean,
}


def traces(root: str, prompts: range, *sessions: str | None, held: bool = False) -> pl.DataFrame:
    """One trace of each prompt in each session."""
    rows = [(f"{root}-{n}", root, "src", session, held, False) for n in prompts for session in sessions]
    return pl.DataFrame(rows, schema=KINDS, orient="row")


@pytest.mark.parametrize("parts", [1, 70])
def test_the_root_of_most_prompts_is_found_over_all_parts(parts: int) -> None:
    roots = Roots()
    for part in range(parts):
        begin = range(part * 3, part * 3 + 3)
        roots.add(
            pl.concat([traces("greeting", begin, f"s{part}", f"t{part}", held=True), traces("talk", range(part * 9, part * 9 + 9), "s")])
        )
    assert roots.largest() == PromptGroup(prompts=3 * parts, of=12 * parts, side="held"), "a single session is one conversation"


def test_calls_without_a_session_may_be_of_several() -> None:
    roots = Roots()
    roots.add(traces("greeting", range(4), None))
    assert roots.largest() == PromptGroup(prompts=4, of=4, side="train")
    assert Roots().largest() is None
