"""Tests of the holdout: a prompt is either held out or used for training, and never changes sides."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratchet.contracts.errors import ConfigError, Inconclusive
from ratchet.contracts.ids import root_id
from ratchet.materializer.lake.schemas import read_parquet
from ratchet.materializer.training_sets.holdout import held_out, identify_prompts, independent, read_golden
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import batch, evaluation, span, spans
from tests.unit.materializer.small_datasets import frozen

LATER = datetime(2026, 12, 1, tzinfo=UTC)


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_share_of_held_out_prompts_equals_the_fraction() -> None:
    roots = [root_id(_user(f"question {n}")) for n in range(4000)]
    one, other = ({root for root in roots if held_out(root, salt, 0.2)} for salt in ("salt", "other"))
    assert len(one) / len(roots) == pytest.approx(0.2, abs=0.02)
    assert one != other


def test_prompts_that_were_identified_before_keep_their_ids() -> None:
    texts = [json.dumps(_user(f"question {n}")) for n in range(9)]
    prompts = pl.DataFrame(
        {"messages": texts + texts[:2], "tools": [None, "[]", *[None] * 9]}, schema={"messages": pl.String, "tools": pl.String}
    )
    every = identify_prompts(prompts)
    assert len(every) == 10, "an empty list of tools is another text than none"
    assert every["prompt_id"].n_unique() == 9, "but the same prompt, so the order by prompt_id alone has a tie"
    again = identify_prompts(prompts, every[:4])
    assert again.sort("prompt_id", "tools").equals(every.sort("prompt_id", "tools"))


def test_an_edition_asks_one_conversation_of_each_cluster_of_near_duplicates() -> None:
    rows = [("turn 1", "r1", "a"), ("turn 2", "r1", "a"), ("variant", "r2", "a"), ("other", "r3", "b")]
    identified = pl.DataFrame([(*row, row[0]) for row in rows], schema=["prompt_id", "root_id", "cluster", "messages"], orient="row")
    prompts = identified.select("prompt_id")
    found = [set(independent(prompts, identified, salt)["prompt_id"]) for salt in "abcdefgh"]
    assert {frozenset(one) for one in found} == {frozenset({"turn 1", "turn 2", "other"}), frozenset({"variant", "other"})}
    only = prompts.filter(pl.col("prompt_id") == "variant")
    assert independent(only, identified, "a").equals(only), "conversations without a reference are not selected"
    assert independent(prompts.clear(), identified, "a").is_empty()


_QUESTIONS = st.lists(st.tuples(st.integers(0, 30), st.booleans(), st.sampled_from(["", " ", "\n"])), min_size=1, max_size=25)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(first=_QUESTIONS, second=_QUESTIONS, fraction=st.sampled_from([0.2, 0.5]))
def test_held_out_prompts_are_never_used_for_training(
    tmp_path_factory: pytest.TempPathFactory,
    first: list[tuple[int, bool, str]],
    second: list[tuple[int, bool, str]],
    fraction: float,
) -> None:
    """No prompt of an edition is in a snapshot, probe prompt or pair, even if it arrives later or in a different spelling."""
    datasets = make_datasets(tmp_path_factory.mktemp("sides"), make_loop(holdout={"fraction": fraction}))
    trained: set[str] = set()
    held: set[str] = set()
    for number, questions in enumerate((first, second), 1):
        items = [
            span(
                1000 * number + at,
                (f"Question {n}?" + space).upper() if loud else f"question {n}?",
                f"A: {at % 2}",
                metadata__reference="1",
            )
            for at, (n, loud, space) in enumerate(questions)
        ]
        datasets.ingest(batch(spans(*items)))
        try:
            edition = datasets.edition(number)
        except Inconclusive:
            continue
        snapshot = datasets.freeze(f"s{number}", LATER, edition)
        training = datasets.assemble(f"t{number}", snapshot, None)
        for key in (snapshot.samples, snapshot.prompts, training.pairs, training.prompts):
            trained |= set(read_parquet(datasets.artifacts.get(key))["prompt_id"])
        held |= set(read_parquet(datasets.artifacts.get(edition.prompts))["prompt_id"])
        assert snapshot.counts["considered"] == snapshot.counts["holdout"] + snapshot.counts["used"] + sum(
            n for key, n in snapshot.counts.items() if key.startswith("out:")
        )
    assert not trained & held


def _held_and_trained(count: int) -> tuple[list[str], list[str]]:
    texts = [f"question {n}?" for n in range(count)]
    held = [text for text in texts if held_out(root_id(_user(text)), "ratchet", 0.2)]
    return held, [text for text in texts if text not in held]


@pytest.mark.slow
def test_edition_contains_reviewer_references_but_no_corrections(tmp_path: Path) -> None:
    held, _ = _held_and_trained(40)
    kinds = [evaluation("reviewer_reference", text="7"), evaluation("user_correction", text="8")]
    datasets = make_datasets(tmp_path)
    datasets.ingest(batch(spans(span(1, held[0], events=kinds[:1]), span(2, held[1], events=kinds[1:]), span(3, held[2]))))
    edition = datasets.edition(1)
    rows = read_parquet(datasets.artifacts.get(edition.prompts)).to_dicts()
    assert [(row["reference"], row["reference_kind"]) for row in rows] == [("7", "reference")]
    datasets.ingest(batch(spans(span(4, held[3], events=kinds[:1]))))
    assert datasets.edition(1) == edition
    assert datasets.edition(2).size == 2


def test_edition_without_references_is_inconclusive(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(batch(spans(span(1))))
    with pytest.raises(Inconclusive, match=r"metadata\.reference"):
        datasets.edition(1)


@pytest.mark.slow
def test_edition_that_was_inconclusive_sees_what_was_ingested_since(tmp_path: Path) -> None:
    held, _ = _held_and_trained(40)
    datasets = make_datasets(tmp_path)
    datasets.ingest(batch(spans(span(1, held[0]))))
    with pytest.raises(Inconclusive):
        datasets.edition(1)
    datasets.ingest(batch(spans(span(2, held[1], events=[evaluation("reviewer_reference", text="7")]))))
    assert datasets.edition(1).size == 1


@pytest.mark.slow
def test_golden_prompts_are_never_used_for_training(tmp_path: Path) -> None:
    held, trained = _held_and_trained(40)
    (tmp_path / "golden.jsonl").write_text(json.dumps({"question": f" {trained[0].upper()}", "reference": 5, "slice": "a"}) + "\n")
    datasets = make_datasets(tmp_path, make_loop(holdout={"golden": "golden.jsonl"}))
    datasets.ingest(batch(spans(*(span(n, text, metadata__reference="1") for n, text in enumerate([held[0], *trained[:3]], 1)))))
    edition = datasets.edition(1)
    assert edition.golden_size == 1
    snapshot = datasets.freeze("s", LATER, edition)
    assert (snapshot.counts["used"], snapshot.counts["holdout"], snapshot.counts["out:golden"]) == (2, 1, 1)


@pytest.mark.slow
def test_masked_traffic_of_a_golden_prompt_is_never_used_for_training(tmp_path: Path) -> None:
    masked = (f"write to [EMAIL_1] about item {n}" for n in range(99))
    kept = next(text for text in masked if not held_out(root_id([{"role": "user", "content": text}]), "ratchet", 0.2))
    said = kept.replace("[EMAIL_1]", "a.b@example-mail.com")
    (tmp_path / "golden.jsonl").write_text(json.dumps({"question": said, "reference": "5"}) + "\n")
    datasets = make_datasets(tmp_path, make_loop(holdout={"golden": "golden.jsonl"}))
    snapshot = frozen(datasets, span(1, said))
    assert (snapshot.counts["used"], snapshot.counts["holdout"], snapshot.counts["out:golden"]) == (0, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("later", ["edited", "removed", "edited, then the next edition"])
def test_golden_prompts_stay_excluded_after_the_golden_file_changes(tmp_path: Path, later: str) -> None:
    held, trained = _held_and_trained(40)
    golden = tmp_path / "golden.jsonl"
    golden.write_text(json.dumps({"question": trained[0], "reference": 5}) + "\n")
    datasets = make_datasets(tmp_path, make_loop(holdout={"golden": "golden.jsonl"}))
    datasets.ingest(batch(spans(*(span(n, text, metadata__reference="1") for n, text in enumerate([held[0], *trained[:3]], 1)))))
    edition = datasets.edition(1)
    golden.write_text(json.dumps({"question": trained[1], "reference": 5}) + "\n")
    if later == "removed":
        datasets = make_datasets(tmp_path)
    elif later != "edited":
        edition = datasets.edition(2)
    snapshot = datasets.freeze("s", LATER, edition)
    found = set(read_parquet(datasets.artifacts.get(snapshot.prompts))["prompt"])
    assert not any(trained[0] in prompt for prompt in found)
    assert len(found) == (2 if later == "removed" else 1)


@pytest.mark.parametrize("line", ["{", '{"question": "x"}', '{"reference": "x"}', "[]", '{"messages": 5, "reference": "x"}'])
def test_invalid_golden_set_is_rejected_with_its_line_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "golden.jsonl"
    path.write_text('{"prompt": "ok", "reference": "1"}\n' + line)
    with pytest.raises(ConfigError, match="line 2"):
        read_golden(path)


@pytest.mark.slow
def test_holdout_split_of_an_existing_line_cannot_be_changed(tmp_path: Path) -> None:
    held, _ = _held_and_trained(40)
    datasets = make_datasets(tmp_path)
    datasets.ingest(batch(spans(span(1, held[0], metadata__reference="1"))))
    datasets.edition(1)
    changed = make_datasets(tmp_path, make_loop(holdout={"fraction": 0.5}))
    with pytest.raises(ConfigError, match=r"split with holdout\.fraction = 0\.2, and prompts would change"):
        changed.edition(2)
