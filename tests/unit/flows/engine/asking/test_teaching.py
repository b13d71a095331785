"""Tests of the asking: rows before and after each request, failures that end it and not the cycle, and crashes at every row."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.contracts.data.datasets import HoldoutEdition, RawBatch, Snapshot
from ratchet.contracts.data.teaching import Sendable, SendablePrompt, TeacherOutcome, teacher_version
from ratchet.contracts.fakes import FakeDatasets, FakeTeacher
from ratchet.contracts.ids import teacher_stream
from ratchet.contracts.loop import TeacherSettings
from ratchet.contracts.rows import GivenModel
from ratchet.contracts.steps import FreezeResult
from ratchet.flows.engine.asking.teaching import ask, prepare, teacher_view
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.effects import freeze
from ratchet.flows.engine.line import open_cycle
from tests.builders import teacher_section
from tests.simulation.simulated_line import Crash, Scenario, SimulatedLine

COUNT = 6


def parquet(rows: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


class TaughtDatasets(FakeDatasets):
    """Datasets whose snapshots have questions that are answered wrong. They remember what was ingested."""

    batches: list[RawBatch]
    context: LineContext

    def freeze(self, name: str, as_of: Any, edition: HoldoutEdition) -> Snapshot:
        """Return a snapshot with questions."""
        made = super().freeze(name, as_of, edition)
        base = {
            "answer": "no",
            "reward": 0.0,
            "tier": "feedback",
            "votes": 1,
            "repeats": 1,
            "origin": "traffic",
            "slice": None,
            "tools": None,
        }
        samples = [
            {"prompt_id": f"p{n}", "prompt": json.dumps([{"role": "user", "content": f"q{n}"}]), "trace": f"in/t{n}", **base}
            for n in range(COUNT)
        ]
        prompts = [{"prompt_id": f"p{n}", "reference": "yes" if n >= COUNT - 2 else None} for n in range(COUNT)]
        put = self.context.artifacts.put
        return made.model_copy(update={"samples": put(parquet(samples)), "prompts": put(parquet(prompts))})

    def ingest(self, batch: RawBatch) -> Any:
        """Remember the batch."""
        self.batches.append(batch)
        return super().ingest(batch)


@pytest.fixture
def make() -> Callable[..., tuple[LineContext, FakeTeacher, TaughtDatasets, SimulatedLine]]:
    def made(reply: Any = lambda _: "yes", faults: Any = None, **changes: Any) -> Any:
        sim = SimulatedLine(Scenario(seed=1), *([faults] if faults else []))
        teacher = FakeTeacher(reply)
        datasets = TaughtDatasets(sim.world, sim.context.datasets.facts)  # type: ignore[attr-defined]
        datasets.batches = []
        datasets.may_be_sent = Sendable(
            prompts=tuple(
                SendablePrompt(
                    prompt_id=f"p{n}",
                    trace=f"in/t{n}",
                    messages=({"role": "user", "content": f"q{n}"},),
                    slice=None,
                    answered=n >= COUNT - 2,
                )
                for n in range(COUNT)
            ),
            refused={},
            provable=False,
        )
        loop = sim.context.loop.model_copy(update={"teacher": TeacherSettings(**teacher_section(**changes))})
        context = replace(sim.context, loop=loop, teacher=teacher, datasets=datasets)
        datasets.context = context
        return context, teacher, datasets, sim

    return made


def snapshot_of(context: LineContext) -> Snapshot:
    return context.datasets.freeze("s", context.clock.now(), context.datasets.edition(1))


def kinds(context: LineContext) -> list[str]:
    return [row.kind for row in context.ledger.read(teacher_stream(context.line))]


def test_each_question_has_a_row_before_it_is_sent_and_its_answer_is_stored_before_the_next(make: Any) -> None:
    seen: list[list[str]] = []
    context, teacher, datasets, _ = make(lambda _: seen.append(kinds(context)) or "yes")
    at, found = ask(context, snapshot_of(context), actor="ada")
    assert seen[2] == ["sent", "got", "sent", "got", "sent"]
    assert (found.asked, found.measuring, found.outcomes, found.stopped) == (COUNT - 2, 2, {"answered": COUNT}, "")
    assert (found.actor, found.region, found.terms.accepted_by, found.currency) == ("ada", "eu", "Ada", "USD")
    assert found.cost == pytest.approx(COUNT * (100 * 2.0 + 10 * 8.0) / 1e6)
    assert found.expected == pytest.approx((COUNT - 2) / COUNT)
    (batch,) = datasets.batches
    lines = [json.loads(line) for line in batch.open().read().splitlines()]
    assert {line["answer"] for line in lines} == {"yes"}
    assert {line["teacher"] for line in lines} == {found.version}
    assert sorted(line["trace"] for line in lines) == [f"t{n}" for n in range(COUNT)]
    assert len(json.loads(context.artifacts.get(found.questions))) == COUNT - 2
    ask(context, snapshot_of(context))
    assert len(teacher.asked) == COUNT, "nothing is asked twice"
    text = json.dumps([row.data for row in context.ledger.read(teacher_stream(context.line))])
    assert "q1" not in text
    assert '"p1"' not in text, "the ledger has neither texts nor ids of prompts"
    assert at >= context.clock.now()


@pytest.mark.parametrize("outcome", [TeacherOutcome.BUSY, TeacherOutcome.REFUSED, TeacherOutcome.UNREACHABLE])
def test_a_teacher_that_takes_no_requests_ends_the_asking_and_is_asked_again_later(make: Any, outcome: TeacherOutcome) -> None:
    context, teacher, _, _ = make(lambda _: outcome)
    _, found = ask(context, snapshot_of(context))
    assert found.stopped == f"the teacher is {outcome}: the teacher is {outcome}"
    assert (len(teacher.asked), found.cost) == (1, 0.0)
    teacher.reply = lambda _: "yes"
    assert ask(context, snapshot_of(context))[1].outcomes == {"answered": COUNT}


@pytest.mark.parametrize("outcome", [TeacherOutcome.DECLINED, TeacherOutcome.CUT, TeacherOutcome.MALFORMED])
def test_questions_without_a_usable_answer_are_counted_and_the_others_go_on(make: Any, outcome: TeacherOutcome) -> None:
    context, teacher, _, _ = make(lambda messages: outcome if messages[0]["content"] == "q0" else "yes")
    _, found = ask(context, snapshot_of(context))
    assert found.outcomes == {"answered": COUNT - 1, outcome.value: 1}
    assert found.stopped == ""
    assert len(teacher.asked) == COUNT


def test_lost_replies_end_the_asking_because_each_may_have_been_paid_for(make: Any) -> None:
    context, teacher, _, _ = make(lambda _: TeacherOutcome.LOST)
    _, found = ask(context, snapshot_of(context))
    assert (len(teacher.asked), found.outcomes) == (3, {"lost": 3})
    assert found.cost == pytest.approx(sum(one.highest for one in prepare(context, snapshot_of(context)).questions[:1]) * 3)


def test_both_budgets_hold_before_anything_is_sent(make: Any) -> None:
    context, teacher, _, _ = make(max_requests=4)
    _, found = ask(context, snapshot_of(context))
    assert (len(teacher.asked), found.stopped) == (4, "the budget of requests is used up (teacher.max_requests)")
    context, teacher, _, _ = make(max_cost=0.0)
    _, found = ask(context, snapshot_of(context))
    assert (teacher.asked, "teacher.max_cost" in found.stopped) == ([], True)


@pytest.mark.slow
def test_a_crash_at_any_row_asks_nothing_twice_and_loses_no_stored_answer(make: Any) -> None:
    """The process ends before or after each row, and before or after the reply. Then it is started again."""
    crashed = 0
    for end in range(1, 60):
        passed = 0

        def boundary(_where: str, end: int = end) -> None:
            nonlocal passed
            passed += 1
            if passed == end:
                raise Crash

        context, teacher, datasets, sim = make(lambda _: boundary("reply") or "yes")
        snapshot = snapshot_of(context)
        sim.ledger.faults = boundary
        try:
            ask(context, snapshot)
        except Crash:
            crashed += 1
        sim.ledger.faults = lambda _: None
        teacher.reply = lambda _: "yes"
        for lease in list(sim.ledger.leases.values()):
            sim.ledger.release(lease)
        ask(context, snapshot)
        asked = Counter(messages[0]["content"] for messages in teacher.asked)
        assert set(asked.values()) == {1}, f"end {end}"
        rounds = teacher_view(context).rounds
        outcomes = sum((Counter(one.outcomes) for _, _, one in rounds), Counter())
        assert outcomes["answered"] + outcomes["interrupted"] == COUNT
        assert outcomes["interrupted"] <= 1
        taken = {line for batch in datasets.batches for line in batch.open().read().splitlines()}
        assert len(taken) == outcomes["answered"], "each stored answer is taken in"
        assert teacher_view(context).spent(sim.clock.now().replace(year=2000))[0] == COUNT
    assert crashed > 20


def test_a_cycle_asks_once_and_its_snapshot_includes_the_answers(make: Any) -> None:
    context, teacher, _, sim = make()
    sim.clock.sleep(60)
    cycle = context.cycle_view(open_cycle(context, "due"))
    sim.clock.sleep(5)
    first, again = freeze(context, cycle, "freeze"), freeze(context, cycle, "freeze")
    assert isinstance(first, FreezeResult)
    assert first == again
    assert first.teacher is not None
    assert (first.teacher.cycle, first.teacher.kept, len(teacher.asked)) == (cycle.id, 0, COUNT)
    assert first.snapshot.as_of == cycle.opened_at + (sim.clock.now() - cycle.opened_at), "later than the cycle was opened"


def test_a_failing_teacher_does_not_stop_a_cycle(make: Any) -> None:
    context, _, _, sim = make(lambda _: TeacherOutcome.REFUSED)
    sim.clock.sleep(60)
    found = freeze(context, context.cycle_view(open_cycle(context, "due")), "freeze")
    assert found.teacher is not None
    assert found.teacher.stopped.startswith("the teacher is refused")


def test_a_reply_that_breaks_the_client_is_lost_and_stops_no_cycle(make: Any) -> None:
    def broken(_: Any) -> str:
        raise OverflowError("a date that no calendar has")

    context, teacher, _, _ = make(broken)
    _, found = ask(context, snapshot_of(context))
    assert (found.outcomes, len(teacher.asked)) == ({"lost": 3}, 3)
    assert found.stopped == "its reply caused an unexpected OverflowError, several times"


def test_a_cycle_with_a_given_model_asks_nothing(make: Any) -> None:
    context, teacher, _, _ = make()
    given = GivenModel(model=context.line_view().champion.model, folder="/given")
    cycle = context.cycle_view(open_cycle(context, "given", given=given))
    assert freeze(context, cycle, "freeze").teacher is None
    assert teacher.asked == []


def test_answers_of_an_interrupted_asking_keep_the_version_that_gave_them(make: Any) -> None:
    context, teacher, datasets, sim = make()
    snapshot, before = snapshot_of(context), teacher.reply

    def crash(_messages: Any) -> str:
        if len(teacher.asked) == 3:
            raise Crash
        return "yes"

    teacher.reply = crash
    with pytest.raises(Crash):
        ask(context, snapshot)
    for lease in list(sim.ledger.leases.values()):
        sim.ledger.release(lease)
    teacher.reply = before
    changed = context.loop.teacher.model_copy(update={"model": "another"})
    context = replace(context, loop=context.loop.model_copy(update={"teacher": changed}))
    _, found = ask(context, snapshot)
    versions = Counter(json.loads(line)["teacher"] for batch in datasets.batches for line in batch.open().read().splitlines())
    assert versions == {found.version: COUNT, teacher_version(TeacherSettings(**teacher_section()))[:16]: 2}
