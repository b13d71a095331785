"""Tests of near-duplicates: signatures, sides that never change, and clusters in the weights of pairs."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from ratchet.contracts.data.records import SAMPLES
from ratchet.contracts.errors import ConfigError
from ratchet.contracts.ids import digest, hash_share, normalise, root_text
from ratchet.contracts.loop import SnapshotSettings
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.lake.schemas import frame_of
from ratchet.materializer.training_sets import near_duplicates
from ratchet.materializer.training_sets.near_duplicates import (
    THRESHOLD,
    NearIndex,
    clusters,
    jaccard,
    prompt_clusters,
    shingles,
    signature,
)
from ratchet.materializer.training_sets.pairs import make_pairs
from ratchet.materializer.training_sets.prompt_sides import FILE, Placed, PromptSides, Side
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import batch, span, spans
from tests.unit.materializer.small_datasets import LATER, VERSIONS, rows

_TEXT = (
    "report order invoice delivery customer payment address account refund parcel warehouse contract discount catalogue supplier "
    "shipment receipt return exchange coupon voucher balance statement transfer deposit insurance policy claim number date"
)
_WORDS = _TEXT.split()


def sentence(n: int, words: int = 30) -> str:
    draw = random.Random(n)
    return " ".join(draw.choice(_WORDS) + str(draw.randrange(100)) for _ in range(words))


def varied(text: str, n: int) -> str:
    """A near-duplicate: one word is replaced."""
    words = text.split()
    words[n % len(words)] = f"changed{n}"
    return " ".join(words)


def held(root: str) -> bool:
    return hash_share("holdout", "s", root) < 0.5


def roots(*texts: str) -> dict[str, str]:
    return {digest(normalise(text).encode()): normalise(text) for text in texts}


def alike(one: str, other: str) -> bool:
    return jaccard(shingles(one), shingles(other)) >= THRESHOLD


# Signatures


def test_shingles_are_the_distinct_grams_of_five_characters() -> None:
    assert len(shingles("abcdefg")) == 3
    assert len(shingles("aaaaaaaaaa")) == 1
    assert jaccard(shingles("abcdefg"), shingles("abcdefg")) == 1
    assert jaccard(shingles("abcdef"), shingles("bcdefg")) == pytest.approx(1 / 3)
    assert len(shingles("")) == len(shingles("ab")) == 1
    assert jaccard(shingles("ab"), shingles("ac")) == 0


def test_a_stored_signature_means_the_same_in_every_release() -> None:
    made = signature(shingles("how do i return a parcel that has arrived too late?"))
    assert made.dtype == np.uint32
    assert len(made) == 125
    assert digest(made.tobytes()) == "3dc06952d47f5a87ae3db4c57dd194205cd7fabf7c61399da1d8a19fef33e273"


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 20, 120, 1500])
def test_equal_numbers_of_signatures_estimate_the_similarity(size: int) -> None:
    """The margin below the threshold at which a pair is not checked is six standard errors of 0.036 (`_MARGIN`)."""
    draw = np.random.default_rng(size)
    for share in (0.5, 0.8, 1.0):
        errors = []
        for _ in range(300):
            union = np.unique(draw.integers(0, 1 << 32, size, dtype=np.uint32))
            draw.shuffle(union)
            common, rest = np.split(union, [max(1, round(share * len(union)))])
            one, other = (np.sort(np.concatenate([common, part])) for part in (rest[::2], rest[1::2]))
            errors.append((signature(one) == signature(other)).mean() - jaccard(one, other))
        assert abs(np.mean(errors)) < 0.01
        assert np.std(errors) < (0.037 if share > 0.7 else 0.047)


def test_clusters_do_not_depend_on_the_order_and_follow_chains() -> None:
    one = sentence(1)
    texts = {"a": one, "b": varied(one, 3), "c": varied(varied(one, 3), 17), "d": sentence(2), "e": varied(sentence(2), 5), "f": "short"}
    found = clusters(texts)
    assert found == clusters(dict(reversed(texts.items())))
    assert found == {"a": "a", "b": "a", "c": "a", "d": "d", "e": "d", "f": "f"}


def test_a_pair_below_the_threshold_is_no_near_duplicate_although_it_shares_a_band() -> None:
    index = NearIndex()
    one = sentence(1)
    words = one.split()
    other = " ".join([*words[:22], *sentence(2).split()[22:]])
    index.add("one", signature(shingles(one)), one)
    assert jaccard(shingles(one), shingles(other)) < THRESHOLD
    assert index.near(other, signature(shingles(other))) == []
    assert index.near(varied(one, 5), signature(shingles(varied(one, 5)))) == ["one"]


_TEMPLATE = "Return the category, the urgency and an answer to the following message of a customer: {} End of the message."


@pytest.mark.slow
@pytest.mark.parametrize("words", [1, 3, 5])  # from near-duplicates of each other to texts that are less similar
def test_the_search_of_a_text_looks_at_a_limited_number_of_a_template(words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    checked, looked = Counter[int](), Counter[int]()
    exact = near_duplicates.jaccard

    def counted(one: Any, other: Any) -> float:
        checked[number] += 1
        return exact(one, other)

    def group(key: str) -> str:
        looked[number] += 1
        return key

    monkeypatch.setattr(near_duplicates, "jaccard", counted)
    index = NearIndex()
    for number in range(1500):
        text = normalise(_TEMPLATE.format(sentence(number, words)))
        signed = signature(shingles(text))
        if number in (300, 1499):
            index.near(text, signed, group)
        index.add(str(number), signed, text)
    assert checked[1499] <= 200
    assert looked[1499] <= 256


@pytest.mark.slow
def test_a_typo_among_a_thousand_texts_of_a_template_is_found() -> None:
    texts = [normalise(_TEMPLATE.format(sentence(n, 20))) for n in range(1000)]
    index = NearIndex()
    for n, text in enumerate(texts):
        index.add(str(n), signature(shingles(text)), text)
    for n in range(0, 1000, 40):
        text = texts[n].replace("urgency", "urgencu", 1)
        assert index.near(text, signature(shingles(text)))[:1] == [str(n)]


@pytest.mark.slow
def test_a_higher_threshold_separates_the_prompts_of_a_template(tmp_path: Path) -> None:
    texts = roots(*(_TEMPLATE.format(f"order {n * 7919} is late") for n in range(60)))
    together = PromptSides(tmp_path / "low").assign(texts, held)
    apart = PromptSides(tmp_path / "high", 0.99).assign(texts, held)
    assert len({placed.side for placed in together.values()}) == 1
    assert {placed.side for placed in apart.values()} == {Side.TRAIN, Side.HELD}


def test_another_threshold_changes_no_earlier_side(tmp_path: Path) -> None:
    texts = roots(*(_TEMPLATE.format(f"order {n * 7919} is late") for n in range(40)))
    before = PromptSides(tmp_path).assign(texts, held)
    more = texts | roots(*(_TEMPLATE.format(f"order {n * 7907} is lost") for n in range(40)))
    after = PromptSides(tmp_path, 0.99).assign(more, held)
    assert {root: after[root].side for root in before} == {root: placed.side for root, placed in before.items()}


# Sides


@pytest.mark.slow
def test_a_new_prompt_follows_its_near_duplicate(tmp_path: Path) -> None:
    first = {sentence(n): n for n in range(12)}
    sides = PromptSides(tmp_path)
    before = sides.assign(roots(*first), held)
    assert {placed.side for placed in before.values()} == {Side.TRAIN, Side.HELD}
    for text in first:
        for n in (2, 9):
            [(root, new)] = sides.assign(roots(varied(text, n)), held).items()
            old = before[next(iter(roots(text)))]
            assert new == Placed(old.side, old.cluster), (root, text)


def test_a_prompt_near_to_both_sides_is_on_neither_and_the_others_stay(tmp_path: Path) -> None:
    one = sentence(1, 60)
    many = [varied(varied(varied(one, n), n + 20), n + 40) for n in range(19)]
    train = next(text for text in many if not held(next(iter(roots(text)))))
    hold = next(text for text in many if held(next(iter(roots(text)))))
    middle = one
    assert alike(train, middle)
    assert alike(hold, middle)
    sides = PromptSides(tmp_path)
    before = sides.assign(roots(train, hold), held, founding=True)
    assert sorted(placed.side for placed in before.values()) == [Side.TRAIN, Side.HELD]
    found = sides.assign(roots(train, hold, middle), held, founding=True)
    assert found[next(iter(roots(middle)))].side is Side.NEITHER
    assert {root: placed.side for root, placed in found.items() if root in before} == {root: one.side for root, one in before.items()}


def test_a_side_cannot_be_changed_in_the_database(tmp_path: Path) -> None:
    PromptSides(tmp_path).assign(roots("hello"), held)
    with closing(sqlite3.connect(tmp_path / FILE)) as connection, pytest.raises(sqlite3.IntegrityError, match="never changes"):
        connection.execute("UPDATE prompts SET side = 2")


def test_an_interrupted_assignment_leaves_nothing(tmp_path: Path) -> None:
    def crash(_root: str) -> bool:
        raise KeyboardInterrupt

    sides = PromptSides(tmp_path)
    sides.assign(roots("first"), held)
    with pytest.raises(KeyboardInterrupt):
        sides.assign(roots("second", "third"), crash)
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        assert connection.execute("SELECT count(*) FROM prompts").fetchone() == (1,)


_BATCHES = given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(0, 40), max_size=4))
_BATCH_SETTINGS = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def in_batches(seed: int, cuts: list[int], words: int) -> list[list[str]]:
    """Eight texts and 32 near-duplicates of them, in an order and in batches that the arguments select."""
    draw = random.Random(seed)
    base = [sentence(draw.randrange(10**6), words) for _ in range(8)]
    texts = [*base, *(varied(draw.choice(base), draw.randrange(1000)) for _ in range(32))]
    draw.shuffle(texts)
    return [texts[low:high] for low, high in pairwise(sorted({0, *cuts, len(texts)}))]


def split_pairs(sides: PromptSides, texts: list[str], similarity: float) -> list[tuple[str, str]]:
    """Pairs with at least this similarity of which one text is in training and the other one is held out."""
    final = sides.assign(roots(*texts), held)
    of = {text: final[root].side for root, text in roots(*texts).items()}
    crossed = [pair for pair in combinations(of, 2) if {of[pair[0]], of[pair[1]]} == {Side.TRAIN, Side.HELD}]
    return [(one, two) for one, two in crossed if jaccard(shingles(one), shingles(two)) >= similarity]


@pytest.mark.slow
@_BATCH_SETTINGS
@_BATCHES
def test_no_order_of_batches_changes_an_earlier_side_or_splits_near_duplicates(
    tmp_path_factory: pytest.TempPathFactory, seed: int, cuts: list[int]
) -> None:
    """Each call passes all texts so far, as the lake does: it still has them."""
    sides, other = (PromptSides(tmp_path_factory.mktemp("sides")) for _ in range(2))
    known: dict[str, Side] = {}
    texts: list[str] = []
    for part in in_batches(seed, cuts, words=30):
        texts += part
        found = sides.assign(roots(*texts), held)
        again = other.assign(dict(reversed(roots(*texts).items())), held)
        assert found == again
        assert all(known.setdefault(root, placed.side) is placed.side for root, placed in found.items())
    final = sides.assign(roots(*texts), held)
    assert {root: placed.side for root, placed in final.items()} == known
    assert split_pairs(sides, texts, THRESHOLD) == []


@pytest.mark.slow
@_BATCH_SETTINGS
@_BATCHES
def test_near_duplicates_of_erased_texts_are_found_if_they_are_above_the_threshold_by_more_than_the_error_of_signatures(
    tmp_path_factory: pytest.TempPathFactory, seed: int, cuts: list[int]
) -> None:
    """Only the signatures of earlier batches are left. The standard error of a similarity of 0.9 is 0.027; the test allows four."""
    sides = PromptSides(tmp_path_factory.mktemp("sides"))
    batches = in_batches(seed, cuts, words=90)
    for part in batches:
        sides.assign(roots(*part), held)
    assert split_pairs(sides, [text for part in batches for text in part], THRESHOLD + 0.11) == []


# Lines


def asked(*texts: str) -> Any:
    return batch(spans(*(span(n, text, metadata__reference="2") for n, text in enumerate(texts, 1))))


def frozen_prompts(datasets: LakeDatasets, name: str = "s") -> tuple[set[str], set[str], dict[str, int]]:
    """Freeze an edition and a snapshot. Return (held-out prompts, training prompts, counts)."""
    edition = datasets.edition(1)
    snapshot = datasets.freeze(name, LATER, edition)
    held_out = {row["prompt"] for row in rows(datasets, edition.prompts)}
    return held_out, {row["prompt"] for row in rows(datasets, snapshot.prompts)}, snapshot.counts


def planted() -> list[str]:
    return [varied(sentence(n), k) if k else sentence(n) for n in range(40) for k in range(3)]


@pytest.mark.slow
def test_near_duplicates_never_end_on_both_sides_of_a_new_line(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(asked(*planted()))
    evaluated, trained, counts = frozen_prompts(datasets)
    assert evaluated
    assert counts["holdout"] + len(trained) + counts["out:near_duplicate_conflict"] == 120
    assert not any(alike(one, two) for one, two in combinations(sorted(evaluated), 2)), "an edition asks one prompt of each cluster"
    assert not any(alike(one, two) for one in evaluated for two in trained)
    assert counts["considered"] == sum(n for name, n in counts.items() if name.startswith("out:")) + counts["holdout"] + counts["used"]
    assert counts["prompt_clusters"] < len(trained)


@pytest.mark.slow
def test_a_freeze_is_deterministic(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        datasets = make_datasets(tmp_path / name)
        datasets.ingest(asked(*planted()))
        edition = datasets.edition(1)
        made.append((edition.prompts, datasets.freeze("s", LATER, edition).content))
    assert made[0] == made[1]


@pytest.mark.slow
def test_a_line_that_is_split_without_it_keeps_its_sides_when_it_is_switched_on(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(holdout={"near_duplicates": False}))
    datasets.ingest(asked(*planted()))
    evaluated, trained, counts = frozen_prompts(datasets)
    assert any(alike(one, two) for one in evaluated for two in trained)
    assert "out:near_duplicate_conflict" not in counts
    assert not (tmp_path / "lake" / FILE).exists()
    on = make_datasets(tmp_path)
    late = [varied(sentence(n), 11) for n in range(20)]
    on.ingest(batch(spans(*(span(500 + n, text, metadata__reference="2") for n, text in enumerate(late)))))
    on.freeze("founding", LATER, on.edition(1))  # what was used before keeps its side
    later = [varied(sentence(n), 23) for n in range(20)]
    on.ingest(batch(spans(*(span(700 + n, text, metadata__reference="2") for n, text in enumerate(later)))))
    after = {row["prompt"] for row in rows(on, on.freeze("s2", LATER, on.edition(1)).prompts)}
    assert trained <= after
    assert not evaluated & after


@pytest.mark.slow
def test_it_cannot_be_switched_off_again(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(asked(*planted()))
    datasets.edition(1)
    off = make_datasets(tmp_path, make_loop(holdout={"near_duplicates": False}))
    with pytest.raises(ConfigError, match="would change their side"):
        off.edition(2)


@pytest.mark.slow
def test_a_near_duplicate_of_a_golden_prompt_is_not_trained_on(tmp_path: Path) -> None:
    (tmp_path / "golden.jsonl").write_text(json.dumps({"prompt": sentence(3), "reference": "2"}))
    datasets = make_datasets(tmp_path, make_loop(holdout={"golden": "golden.jsonl"}))
    datasets.ingest(asked(*planted()))
    _, trained, counts = frozen_prompts(datasets)
    assert not any(alike(sentence(3), text) for text in trained)
    assert counts["considered"] == sum(n for name, n in counts.items() if name.startswith("out:")) + counts["holdout"] + counts["used"]


@pytest.mark.slow
def test_a_freeze_names_the_largest_cluster_of_prompts(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(asked(*(_TEMPLATE.format(f"order {n * 7919} is late") for n in range(60)), *(sentence(n) for n in range(40))))
    found = datasets.freeze("s", LATER, datasets.edition(1)).largest_cluster
    assert found is not None
    assert (found.prompts, found.of, found.side in ("train", "held")) == (60, 100, True)


# Pairs


def samples(prompts: list[str]) -> Any:
    plain = {"tier": "verifiable", "votes": 0, "repeats": 1, "trace": None, "user": None, "origin": "traffic", "model_version": None}
    return frame_of(
        [
            {
                "prompt_id": digest(text),
                "prompt": f'[{{"role":"user","content":"{text}"}}]',
                "answer": answer,
                "reward": reward,
                "slice": None,
                "tools": None,
            }
            | plain
            | {"parts": f'{{"v":{reward}}}'}
            for text in prompts
            for answer, reward in (("good", 1.0), ("bad", 0.0))
        ],
        SAMPLES,
    )


def test_a_thousand_rewordings_of_a_prompt_weigh_as_much_as_one_prompt() -> None:
    one = sentence(1, 60)
    texts = [varied(varied(one, n), n * 7) for n in range(40)] + [sentence(n) for n in range(2, 6)]
    alone = make_pairs(samples(texts), SnapshotSettings(), VERSIONS, None, "s")
    assert (alone.clusters, alone.frame["weight"].sum()) == (None, 44.0)
    made = make_pairs(samples(texts), SnapshotSettings(), VERSIONS, None, "s", prompt_clusters)
    assert made.clusters == 5
    assert len(made.frame) == 44
    assert made.frame["weight"].sum() == pytest.approx(2 + 4)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_long_instruction_does_not_make_different_questions_near_duplicates(role: str) -> None:
    texts = [*(sentence(n) for n in range(20)), *(varied(sentence(n), 3) for n in range(3))]
    alone = {str(n): json.dumps([{"role": "user", "content": text}]) for n, text in enumerate(texts)}
    instruction = {"role": role, "content": sentence(99, 500)}
    instructed = {key: json.dumps([instruction, *json.loads(prompt)]) for key, prompt in alone.items()}
    assert prompt_clusters(instructed) == prompt_clusters(alone)
    assert len(set(prompt_clusters(alone).values())) == 20


def test_documents_in_the_instructions_make_the_same_question_different_ones() -> None:
    asked = {"role": "user", "content": "Summarise the document."}
    prompts = {str(n): json.dumps([{"role": "system", "content": sentence(n, 60)}, asked]) for n in range(40)}
    assert len(set(prompt_clusters(prompts).values())) == 40
    both = {"role": "system", "content": sentence(99, 200)}
    assert len(set(prompt_clusters({key: json.dumps([both, *json.loads(prompt)]) for key, prompt in prompts.items()}).values())) == 40


def test_prompts_that_are_only_an_instruction_are_compared_by_it() -> None:
    texts = [sentence(1, 60), varied(sentence(1, 60), 3), sentence(2, 60)]
    prompts = {str(n): json.dumps([{"role": "system", "content": text}]) for n, text in enumerate(texts)}
    assert prompt_clusters(prompts) == {"0": "0", "1": "0", "2": "2"}


@pytest.mark.shared
@pytest.mark.slow
def test_all_near_duplicates_among_rewordings_of_recorded_prompts_are_found(traces: Path) -> None:
    """The truth is the exact Jaccard similarity of all pairs. The recorded prompts themselves have no near-duplicates."""
    draw = random.Random(5)
    with gzip.open(traces / "golden.jsonl.gz", "rt", encoding="utf-8") as lines:
        recorded = sorted({root_text(json.loads(line)["record"]["messages"]) for line in lines})
    texts = recorded + [varied(text, draw.randrange(1000)) for text in recorded]
    sets = [shingles(text) for text in texts]
    _, columns = np.unique(np.concatenate(sets), return_inverse=True)
    sizes = np.array([len(one) for one in sets])
    held = csr_matrix((np.ones(len(columns), dtype=np.int32), (np.repeat(np.arange(len(sets)), sizes), columns)))
    common = (held @ held.T).tocoo()
    alike = common.data / (sizes[common.row] + sizes[common.col] - common.data)
    places = zip(common.row[alike >= THRESHOLD].tolist(), common.col[alike >= THRESHOLD].tolist(), strict=True)
    truth = {(one, other) for one, other in places if one < other}
    index, found = NearIndex(), set()
    for at, text in enumerate(texts):
        signed = signature(sets[at])
        found |= {(int(key), at) for key in index.near(text, signed)}
        index.add(str(at), signed, text)
    assert len(truth) > 1000
    assert found == truth
