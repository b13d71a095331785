"""Tests of texts outside of memory: keys lead to the same results as texts."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.contracts.data.records import TRACES
from ratchet.contracts.errors import Retryable
from ratchet.contracts.loop import GovernanceSettings, PrivacySettings
from ratchet.materializer.governance import govern, with_facts
from ratchet.materializer.lake.schemas import frame_of
from ratchet.materializer.privacy.masked_values import placeholder_pattern
from ratchet.materializer.texts import PLACE, TextFile, filled_parts, key_of
from ratchet.materializer.training_sets.holdout import identify_prompts

TEXT = st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
ROWS = st.lists(st.fixed_dictionaries({"messages": TEXT, "answer": TEXT, "tools": TEXT}), min_size=1, max_size=12)
_TEXTS = pl.Schema(dict.fromkeys(("messages", "answer", "tools"), pl.String))
_FOLDER = Path(tempfile.gettempdir())
_START = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.mark.slow
@given(rows=ROWS, cut=st.integers(0, 12))
def test_every_row_gets_its_texts_back_in_any_order(rows: list[dict[str, str | None]], cut: int) -> None:
    frame = pl.DataFrame(rows, _TEXTS)
    texts = TextFile(_FOLDER)
    keyed = pl.concat([texts.keyed(frame[:cut]), texts.keyed(frame[cut:])])
    shuffled = keyed.sample(fraction=1, shuffle=True, seed=1)
    found = pl.concat(list(filled_parts(shuffled, texts))).sort(PLACE).drop(PLACE)
    assert found.equals(frame)


@given(rows=ROWS)
def test_keys_are_equal_exactly_for_equal_texts(rows: list[dict[str, str | None]]) -> None:
    frame = pl.DataFrame(rows, _TEXTS)
    keyed = TextFile(_FOLDER).keyed(frame)
    for name in _TEXTS:
        assert keyed[name].to_list() == [None if text is None else key_of(text) for text in frame[name].to_list()]
        assert keyed[name].n_unique() == frame[name].n_unique()


def test_a_key_that_is_taken_away_gives_no_text() -> None:
    """The rules take the answers from questions whose answers are left out."""
    texts = TextFile(_FOLDER)
    keyed = texts.keyed(pl.DataFrame({"messages": ["a", "b"], "answer": ["c", "d"], "tools": [None, "e"]}, _TEXTS))
    without = keyed.with_columns(answer=pl.when(pl.col("messages") == key_of("a")).then("answer"))
    assert texts.filled(without)["answer"].to_list() == ["c", None]
    assert texts.filled(without.rename({"messages": "prompt"}))["prompt"].to_list() == ["a", "b"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Retryable, match="free disk space, then try again"):
        TextFile(tmp_path / "file")


_QUESTION = st.none() | st.sampled_from(["", "a", "b", "long " * 9, '{"type":"image_url","image_url":{"url":""}}'])
_ANSWER = st.none() | st.sampled_from(["", "[EMAIL_1]", "x", "y", "long " * 15])
_TRACE = st.tuples(_QUESTION, _ANSWER, st.none() | st.just("[]"), st.integers(0, 2), st.booleans())
_GIVEN = {"source": "s", "ingested": 0, "batch": "", "origin": "traffic", "consent": True}


def _row(number: int, question: str | None, answer: str | None, tools: str | None, user: int, good: bool) -> dict[str, object]:
    time = int((_START + timedelta(seconds=number)).timestamp() * 1e6)
    messages = None if question is None else json.dumps([{"role": "user", "content": question}])
    own = {"id": str(number), "time": time, "user": f"u{user}", "status": "ok" if good else "error", "verified": good}
    return {column.name: None for column in TRACES} | _GIVEN | own | {"messages": messages, "answer": answer, "tools": tools}


@pytest.mark.slow
@settings(max_examples=60)
@given(traces=st.lists(_TRACE, min_size=1, max_size=14), users=st.integers(1, 2))
def test_the_rules_decide_alike_with_keys_and_with_texts(
    traces: list[tuple[str | None, str | None, str | None, int, bool]], users: int
) -> None:
    plain = frame_of([_row(number, *trace) for number, trace in enumerate(traces)], TRACES).with_columns(refused=False)
    texts, loop = TextFile(_FOLDER), GovernanceSettings(min_users=users, max_chars=70)
    known = with_facts(plain, placeholder_pattern(PrivacySettings()))
    expected, found = govern(known, loop), govern(texts.keyed(known), loop)
    for one, other in ((found.used, expected.used), (found.questions, expected.questions)):
        assert texts.filled(one).drop(PLACE).equals(other)
    keyed = ("messages", "tools")
    assert found.asked.drop(keyed).equals(expected.asked.drop(keyed))
    assert (found.merged.equals(expected.merged), found.refused.equals(expected.refused), found.out) == (True, True, expected.out)
    prompts = identify_prompts(expected.used)["prompt_id"].sort()
    assert identify_prompts(found.used, texts=texts)["prompt_id"].sort().equals(prompts)
