"""Tests of the looks of an evaluation: its batches, when it stops, and that a stop never makes a pass easier."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import HoldoutEdition
from ratchet.contracts.evaluation import ChatAnswer, ChatRequest, EarlierAnswers, EvalReport, Looks, Result
from ratchet.contracts.fakes import FakeRewards, MemoryArtifacts, fake_model
from ratchet.contracts.loop import GateSettings
from ratchet.gates.boundaries import error_of_look
from ratchet.gates.checks import Quality, checks
from ratchet.gates.evaluation.evaluator import PairedEvaluator
from ratchet.gates.evaluation.looks import LEAST_BATCH, batches, conditional_power, group_sizes, stop
from ratchet.gates.evaluation.questions import Question, read_questions
from tests.unit.gates.reports import comparison, count, report

LEVEL = 1 - 2 * (1 - 0.95 ** (1 / 8))
FIVE = GateSettings(looks=5)
ONE = GateSettings(looks=1)
Row = tuple[str, str | None]
"""Prompt and slice."""


class Scripted:
    """`ModelClient` that answers "yes", which is right, or "nay". It records the requests."""

    def __init__(self, right: Callable[[str], bool]) -> None:
        self.right = right
        self.asked: list[str] = []

    def chat(self, requests: Sequence[ChatRequest], progress: Any = None) -> list[ChatAnswer]:
        names = [str(request.messages[-1]["content"]) for request in requests]
        self.asked += names
        progress("querying", len(requests), len(requests))
        return [ChatAnswer(text="yes" if self.right(name) else "nay", finish_reason="stop") for name in names]


def store(artifacts: MemoryArtifacts, rows: Sequence[Row]) -> str:
    content = [{"prompt": json.dumps([{"role": "user", "content": name}]), "reference": "yes", "slice": part} for name, part in rows]
    buffer = io.BytesIO()
    schema = pa.schema([("prompt", pa.string()), ("reference", pa.string()), ("slice", pa.string())])
    pq.write_table(pa.Table.from_pylist(content, schema), buffer)
    return artifacts.put(buffer.getvalue())


def edition(artifacts: MemoryArtifacts, held: Sequence[Row], golden: Sequence[Row] = (), number: int = 1) -> HoldoutEdition:
    prompts, key = store(artifacts, held), store(artifacts, golden) if golden else None
    sizes = {"size": len(held), "golden_size": len(golden)}
    return HoldoutEdition(line="l", number=number, prompts=prompts, golden=key, normaliser=1, fraction=0.2, **sizes)


def evaluated(
    held: HoldoutEdition,
    artifacts: MemoryArtifacts,
    old: Callable[[str], bool],
    new: Callable[[str], bool],
    gate: GateSettings = FIVE,
    past: Sequence[EarlierAnswers] = (),
    may_pass_early: bool = True,
    told: list[tuple[int, int]] | None = None,
) -> tuple[EvalReport, Scripted]:
    clients = Scripted(old), Scripted(new)
    sides = [(fake_model(name), client) for name, client in zip(("old", "new"), clients, strict=True)]

    def progress(_what: str, done: int, total: int) -> None:
        if told is not None:
            told.append((done, total))

    evaluator = PairedEvaluator(artifacts, FakeRewards(), gate, may_pass_early)
    found = evaluator.evaluate(held, sides[0], sides[1], progress, LEVEL, past)
    assert clients[0].asked == clients[1].asked[: len(clients[0].asked)], "both models get the same batches"
    return found, clients[1]


def chance(side: str, right: float) -> Callable[[str], bool]:
    return lambda name: random.Random(f"{side} {name}").random() < right


def passes(found: EvalReport, gate: GateSettings = FIVE) -> bool:
    return all(check.check(found).result is Result.PASS for check in checks(gate))


def plain(n: int, slices: int = 0, name: str = "q") -> list[Row]:
    return [(f"{name}{place}", f"s{place % slices}" if slices else None) for place in range(n)]


# --- the batches ---


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 150), st.sampled_from([None, "a", "b", "rare"])), min_size=1, max_size=300), st.integers(1, 5))
def test_batches_divide_the_prompts_by_conversation(found: list[tuple[int, str | None]], looks: int) -> None:
    questions = [
        Question(("holdout", "golden")[place % 2], ({"role": "user", "content": f"q{name}"},), str(place), part)
        for place, (name, part) in enumerate(found)
    ]
    held = edition(MemoryArtifacts(), [("q", None)])
    plan = batches(questions, held, looks)
    assert sorted(place for batch in plan for place in batch) == list(range(len(questions)))
    clusters = [{questions[place].cluster for place in batch} for batch in plan]
    assert sum(map(len, clusters)) == len(set().union(*clusters)), "no conversation is in two batches"
    assert len(plan) <= looks
    assert len(plan) == 1 or min(map(len, clusters)) >= LEAST_BATCH
    assert max(map(len, clusters)) - min(map(len, clusters)) <= 1
    assert batches(questions, held, looks) == plan


def test_each_batch_has_its_part_of_every_set_and_slice() -> None:
    artifacts = MemoryArtifacts()
    rows = [(f"q{n}", "large" if n % 4 else "small") for n in range(400)]
    held = edition(artifacts, rows, plain(100, 2, "g"))
    questions = [
        q for name, key in (("holdout", held.prompts), ("golden", held.golden)) if key for q in read_questions(name, artifacts.get(key))
    ]
    plan = batches(questions, held, 5)
    for batch in plan:
        groups = Counter(group for place in batch for group in questions[place].groups)
        assert {name: abs(groups[name] - whole / 5) <= 1.5 for name, whole in group_sizes(questions).items()} == dict.fromkeys(groups, True)
    other = batches(questions, held.model_copy(update={"prompts": "0" * 64}), 5)
    assert plan != other, "another edition has another order"
    first = {place for place in other[0] if place < 400}
    spread = [len(first & {place for place in batch if place < 400}) for batch in plan]
    assert max(spread) <= 30, "prompts that were chosen to be first in one edition are spread over the batches of another"
    assert batches(questions, held, 1) == [list(range(500))]


# --- the evaluation ---


def test_a_worse_candidate_stops_early_and_does_not_pass() -> None:
    artifacts, told = MemoryArtifacts(), []
    held = edition(artifacts, plain(600, 3))
    found, asked = evaluated(held, artifacts, chance("a", 0.6), chance("b", 0.5), told=told)
    assert found.looks is not None
    assert found.looks.stopped == "futility"
    assert found.asked == len(asked.asked) < 600
    assert found.stop == (
        f"stopped after look {found.looks.done} of 5 ({found.asked} of 600 prompts): the rest would hardly show a gain; "
        f"{2 * (600 - found.asked)} requests saved"
    )
    assert not passes(found)
    assert found.stop in Quality(FIVE).check(found).reason
    assert sum(count.asked for count in found.counts if count.name == "holdout") == found.asked
    assert {total for _, total in told} == {600}
    assert max(done for done, _ in told) == found.asked


def test_a_much_better_candidate_stops_early_and_passes_by_the_boundary_of_its_look() -> None:
    artifacts = MemoryArtifacts()
    found, _ = evaluated(edition(artifacts, plain(600)), artifacts, chance("a", 0.4), chance("b", 0.7))
    assert found.looks is not None
    assert found.looks.stopped == "success"
    assert found.asked < 600
    overall = found.comparison("overall")
    assert overall is not None
    error = error_of_look(found.looks.compared, 600, (1 - LEVEL) / 2, last=False)
    assert overall.difference.level == pytest.approx(1 - 2 * error)
    assert found.comparison("holdout").difference.level == LEVEL
    assert passes(found)


@pytest.mark.slow
def test_a_repeated_evaluation_asks_the_same_prompts_and_returns_the_same_report() -> None:
    artifacts = MemoryArtifacts()
    held = edition(artifacts, plain(600, 3), plain(50, 2, "g"))
    for right in (0.45, 0.5, 0.8):
        first, asked = evaluated(held, artifacts, chance("a", 0.5), chance("b", right))
        again, repeated = evaluated(held, artifacts, chance("a", 0.5), chance("b", right))
        assert again == first
        assert repeated.asked == asked.asked


def test_an_evaluation_that_asks_all_differs_from_one_look_in_the_level_alone() -> None:
    artifacts = MemoryArtifacts()
    held = edition(artifacts, plain(600, 3), plain(50, 2, "g"))
    found, _ = evaluated(held, artifacts, chance("a", 0.55), chance("b", 0.6))
    single, _ = evaluated(held, artifacts, chance("a", 0.55), chance("b", 0.6), ONE)
    assert single.looks is None
    assert found.looks is not None
    assert (found.looks.done, found.looks.stopped, found.stop) == (5, None, None)
    assert found.comparisons[1:] == single.comparisons[1:]
    wide, narrow = found.comparisons[0].difference, single.comparisons[0].difference
    assert wide.estimate == narrow.estimate
    assert wide.low < narrow.low < narrow.high < wide.high
    same = {"looks", "comparisons"}
    assert found.model_dump(exclude=same) == single.model_dump(exclude=same)


@pytest.mark.parametrize("seed", range(12))
def test_a_stop_for_futility_never_passes(seed: int) -> None:
    artifacts = MemoryArtifacts()
    found, _ = evaluated(edition(artifacts, plain(200)), artifacts, chance(f"a{seed}", 0.55), chance(f"b{seed}", 0.5))
    if found.looks is not None and found.looks.stopped == "futility":
        assert not passes(found)
        forged = found.model_copy(update={"comparisons": (comparison("overall", 0.2, 0.3, found.looks.compared[-1]),)})
        assert Quality(FIVE).check(forged).result is not Result.PASS


def test_identical_models_stop_for_futility() -> None:
    artifacts = MemoryArtifacts()
    found, _ = evaluated(edition(artifacts, plain(600)), artifacts, chance("a", 0.5), chance("a", 0.5))
    assert found.looks is not None
    assert found.looks.stopped == "futility"


def test_a_small_edition_has_one_look() -> None:
    artifacts = MemoryArtifacts()
    found, _ = evaluated(edition(artifacts, plain(2 * LEAST_BATCH - 1)), artifacts, chance("a", 0.2), chance("b", 0.9))
    assert found.looks is None


# --- a stop for success is no easier than the whole edition ---

BETTER = chance("a", 0.35), chance("b", 0.75)


def test_a_slice_that_loses_late_is_asked_before_a_pass() -> None:
    """The slice has 30 prompts of which the first batches ask few, and the candidate is wrong on all of them that come late."""
    artifacts = MemoryArtifacts()
    rows = [*plain(570), *((f"rare{n}", "rare") for n in range(30))]
    held = edition(artifacts, rows)
    questions = read_questions("holdout", artifacts.get(held.prompts))
    late = {str(questions[place].prompt[0]["content"]) for batch in batches(questions, held, 5)[2:] for place in batch}

    def new(name: str) -> bool:
        return name not in late if name.startswith("rare") else BETTER[1](name)

    def old(name: str) -> bool:
        return name.startswith("rare") or BETTER[0](name)

    without, _ = evaluated(edition(artifacts, plain(570)), artifacts, *BETTER)
    assert without.looks is not None
    assert without.looks.done <= 3, "without the slice, the gain is shown early"
    found, _ = evaluated(held, artifacts, old, new)
    single, _ = evaluated(held, artifacts, old, new, ONE)
    assert found.asked == 600
    assert not passes(single)
    assert not passes(found)


def test_slices_that_the_whole_edition_could_judge_must_exclude_a_loss_of_the_margin() -> None:
    artifacts = MemoryArtifacts()
    gain = chance("a", 0.45), chance("b", 0.65)

    def asked(slices: int) -> int:
        return evaluated(edition(artifacts, plain(600, slices)), artifacts, *gain)[0].asked

    assert asked(0) < 600
    assert asked(10) == 600, "slices of 60 prompts cannot exclude the loss any earlier"
    assert asked(60) == asked(0), "slices of ten prompts are never judged"


def test_the_golden_set_is_asked_whole_if_an_earlier_champion_answered_it() -> None:
    artifacts = MemoryArtifacts()
    held = edition(artifacts, plain(560), plain(40, 0, "g"))
    first, _ = evaluated(held, artifacts, *BETTER)
    assert first.looks is not None
    assert first.looks.stopped == "success"
    past = [EarlierAnswers(version="v", answers=first.answers)]
    stored = [json.loads(row) for row in artifacts.get(first.answers).splitlines()]
    common = sum(row["set"] == "golden" for row in stored)
    assert common == sum(count.asked for count in first.counts if count.name == "golden") < 40
    found, _ = evaluated(held, artifacts, *BETTER, past=past)
    if common >= FIVE.min_slice:
        assert found.asked == 600
    assert found.earlier_common == common, "a stopped evaluation stored the golden answers that it asked for"
    fewer, _ = evaluated(held, artifacts, *BETTER, FIVE.model_copy(update={"min_slice": common + 1}), past)
    assert fewer.asked < 600, "too few common prompts are never compared"


def test_checks_of_other_packages_see_the_whole_edition() -> None:
    artifacts = MemoryArtifacts()
    held = edition(artifacts, plain(600))
    found, _ = evaluated(held, artifacts, *BETTER, may_pass_early=False)
    assert found.asked == 600
    worse, _ = evaluated(held, artifacts, BETTER[1], BETTER[0], may_pass_early=False)
    assert worse.looks is not None
    assert worse.looks.stopped == "futility"


def at_look(low: float, high: float, done: int = 3, compared: int | None = None, **changes: Any) -> EvalReport:
    """Return a report on 600 prompts at a look, without slices."""
    n = compared or 120 * done
    sizes = tuple(n * number // done for number in range(1, done + 1))
    looks = Looks(planned=5, prompts=600, clusters=600, compared=sizes, level=LEVEL, stopped="success" if done < 5 else None)
    error = error_of_look(sizes, 600, looks.error, done == 5)
    pairs = [comparison("overall", low, high, n), comparison("holdout", low, high, n)]
    levels = {"overall": 1 - 2 * error, "holdout": LEVEL}
    fields = {
        "asked": n,
        "answered_by_both": n,
        "looks": looks,
        "counts": (count("holdout", n),),
        "comparisons": tuple(
            one.model_copy(update={"difference": one.difference.model_copy(update={"level": levels[one.name]})}) for one in pairs
        ),
    }
    return report(**(fields | changes))


WHOLE = {"holdout": 600}


def test_a_shown_gain_stops_and_each_doubt_goes_on() -> None:
    assert stop(at_look(0.05, 0.2), WHOLE, FIVE) == "success"
    assert stop(at_look(0.05, 0.2), WHOLE, FIVE.model_copy(update={"min_effect": 0.06})) is None, "the gain must exceed min_effect"
    assert stop(at_look(0.05, 0.2), WHOLE | {"slice:late": 1}, FIVE) is None, "a slice was not asked yet"
    assert stop(at_look(0.05, 0.2), {"holdout": 580, "golden": 20}, FIVE) is None, "the golden set was not asked yet"
    assert stop(at_look(0.05, 0.2), WHOLE, FIVE, may_pass=False) is None
    assert stop(at_look(0.05, 0.2, lengths={"champion": 100.0, "candidate": 200.0}), WHOLE, FIVE) is None, "the length may still change"
    assert stop(at_look(0.05, 0.2, lengths={}), WHOLE, FIVE) is None
    failed = {"failures": {"candidate:HTTP 500": 8}, "answered_by_both": 352}
    counts = (count("holdout", 360, answered_by_both=352, candidate_failed=8),)
    assert stop(at_look(0.05, 0.2, **failed, counts=counts), WHOLE, FIVE) is None, "requests failed on more than 2 % so far"


def test_conditional_power_grows_with_the_estimate_and_falls_with_the_looks() -> None:
    def power(estimate: float, done: int) -> float:
        found = at_look(estimate - 0.15, estimate + 0.15, done)
        assert found.looks is not None
        return conditional_power(found.comparisons[0], found.looks, 0.0)

    assert [power(estimate, 3) for estimate in (-0.1, -0.02, 0.02, 0.1)] == sorted(power(e, 3) for e in (-0.1, -0.02, 0.02, 0.1))
    assert power(-0.02, 1) > power(-0.02, 2) > power(-0.02, 3) > power(-0.02, 4)
    assert power(0.05, 5) == 1.0


# --- the report ---


def test_an_interval_below_the_level_of_its_look_does_not_pass() -> None:
    found = at_look(0.05, 0.2)
    assert Quality(FIVE).check(found).result is Result.PASS
    overall = found.comparisons[0]
    loose = overall.model_copy(update={"difference": overall.difference.model_copy(update={"level": LEVEL})})
    for done, compared in ((1, 2), (1, 50), (2, 100)):
        early = at_look(0.5, 0.6, done, compared)
        assert Quality(FIVE.model_copy(update={"min_prompts": 2})).check(early).result is Result.PASS, "rounding decides nothing"
    forged = at_look(0.05, 0.2, comparisons=(loose, found.comparisons[1]))
    verdict = Quality(FIVE).check(forged)
    assert verdict.result is Result.INCONCLUSIVE
    assert "is not that of the look" in verdict.reason


@pytest.mark.parametrize(
    "change",
    [
        {"compared": (120, 100)},
        {"compared": (120, 601)},
        {"planned": 2, "compared": (1, 2, 3), "stopped": None},
        {"stopped": None},
        {"compared": (1, 2, 3, 4, 5)},
        {"clusters": 601},
    ],
)
def test_contradictory_looks_are_rejected(change: dict[str, Any]) -> None:
    good = {"planned": 5, "prompts": 600, "clusters": 600, "compared": (120, 240), "level": 0.99, "stopped": "futility"}
    Looks.model_validate(good)
    with pytest.raises(ValueError, match="looks"):
        Looks.model_validate(good | change)


@pytest.mark.parametrize("change", ["overall level", "slice level", "prompts", "all asked"])
def test_reports_that_contradict_their_looks_are_rejected(change: str) -> None:
    found = at_look(0.05, 0.2)
    content = found.model_dump()
    if change == "overall level":
        content["comparisons"][0]["difference"]["level"] = LEVEL - 0.01
    elif change == "slice level":
        content["comparisons"][1]["difference"]["level"] = LEVEL - 0.01
    elif change == "prompts":
        content["looks"] |= {"prompts": 300, "clusters": 300, "compared": (100, 200, 300)}
    else:
        content["looks"] |= {"compared": (120, 240, 300, 330, 360), "stopped": None}
    with pytest.raises(ValueError, match="contradicts itself"):
        EvalReport.model_validate(content)


def test_reports_of_earlier_releases_have_one_look() -> None:
    content = report().model_dump(mode="json")
    del content["looks"]
    read = EvalReport.model_validate(content)
    assert read.looks is None
    assert read.stop is None
    assert passes(read, GateSettings(min_prompts=50, min_slice=10))
