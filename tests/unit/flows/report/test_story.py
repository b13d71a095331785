"""Tests of the report of a cycle, as text and as a page, for every end of a simulated cycle and after every row."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ratchet.contracts.data.beliefs import SignalBelief, TeacherBelief
from ratchet.contracts.data.datasets import MaskedData, NearRule, NearRung, ProbeReport, PromptGroup, Snapshot
from ratchet.contracts.data.records import Signal
from ratchet.contracts.data.teaching import TeacherRound
from ratchet.contracts.errors import Permanent
from ratchet.contracts.evaluation import UNLIKE, Looks
from ratchet.contracts.fakes import MemoryArtifacts
from ratchet.contracts.ids import digest, rollout_stream
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Adjustment, JobEvent, LeftOut, Method, Proposal
from ratchet.contracts.loop import RolloutSettings, TermsSettings
from ratchet.contracts.rows import Judged, row_of
from ratchet.contracts.serving import SequentialTest, StepJudgement, StepResult
from ratchet.contracts.steps import EvaluateResult, FreezeResult, ProbeResult, State
from ratchet.flows.core.folds.rollout import RolloutView, fold_rollout
from ratchet.flows.engine.choice.training_curves import accepted_line, read_event_logs
from ratchet.flows.engine.line import cycle_requests
from ratchet.flows.report.page import render_report
from ratchet.flows.report.story import (
    _choice,
    _evidence,
    _gate,
    _notes,
    _probe,
    _rollout,
    _signals,
    _teacher,
    ledger_table,
    probed_champion_text,
    sampling,
    stopping,
    tell,
)
from tests.browser import PHONE, content_width
from tests.simulation.searched import searched
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.cycles import entry, knowing, plan_result
from tests.unit.gates.reports import report

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def lived(**how) -> SimulatedLine:
    sim = SimulatedLine(Scenario(seed=1, **how))
    sim.live()
    return sim


def words(sim: SimulatedLine) -> str:
    rows = sim.ledger.read(rollout_stream(sim.cycle_stream()))
    requests = cycle_requests(sim.ledger, sim.view())
    sections = tell(sim.ledger.read(sim.cycle_stream()), fold_rollout(rows) if rows else None, requests, sim.clock.now())
    cells = [cell for s in sections if s.table for row in s.table.rows for cell in row]
    return "\n".join([*(s.title for s in sections), *(t for s in sections for t in s.text), *cells])


def test_the_data_say_what_was_masked_and_whether_most_prompts_are_alike() -> None:
    masked = MaskedData(rules="1-ab", on=("email",), off=("person",), found={"email": 3})
    said = _notes(Snapshot.model_construct(masked=masked, counts={}, largest_cluster=PromptGroup(prompts=90, of=100, side="train")))
    assert "email 3" in said[0]
    assert said[1].startswith("Warning: 90 of 100 prompts (90%)")
    assert _notes(Snapshot.model_construct(masked=masked, counts={}, largest_cluster=None)) == said[:1]
    rule = NearRule(similarity=0.9, measured=(NearRung(least=0.8, below=0.9, pairs=14, different=14),))
    measured = _notes(Snapshot.model_construct(masked=masked, counts={}, near=rule))
    assert measured[1].startswith("Prompts with a similarity from 0.9 on count as near-duplicates, as this")


def test_signals_are_told_with_their_agreement_and_why_they_have_no_weight() -> None:
    measured = {"answers": 1200, "rated": 40, "people": 30, "agreeing": 36, "agreement": 0.9, "low": 0.75, "high": 0.97, "others": 0.6}
    beliefs = (
        SignalBelief(signal=Signal.COPIED, **measured, gain=0.1, used=True, reason="it agrees with the ratings", labels=7),
        SignalBelief(signal=Signal.EDITED, answers=1, rated=0, people=0, agreeing=0, used=False, reason="0 rated answers have it"),
    )
    section = _signals(knowing(FreezeResult.model_construct(snapshot=Snapshot.model_construct(signals=beliefs))))
    assert section is not None
    assert section.table is not None
    assert section.table.rows == (
        ("copied", "1,200", "40", "30", "36", "0.90 (0.75 to 0.97)", "0.60", "7", "yes: it agrees with the ratings"),
        ("edited", "1", "0", "0", "0", "–", "–", "0", "no: 0 rated answers have it"),
    )
    assert len(section.table.columns) == len(section.table.rows[0])
    assert _signals(knowing(FreezeResult.model_construct(snapshot=Snapshot.model_construct(signals=())))) is None


def test_a_teacher_is_told_with_its_counts_its_money_and_its_terms() -> None:
    asked = TeacherRound(
        version="a" * 16, url="https://t.example/v1", model="big", region="eu", consent="required", asked=30, measuring=20,
        terms=TermsSettings(text="terms of 2026", accepted_by="Ada", accepted_on=date(2026, 1, 15)), currency="EUR", cost=0.25, kept=48,
        outcomes={"answered": 48, "cut": 2}, left_out={"they call tools": 3}, questions=digest([]), expected=0.125,
        stopped="the teacher is busy: HTTP 429",
    )  # fmt: skip
    belief = TeacherBelief(
        version="a" * 16, slice="sums", compared=20, agreeing=19, low=0.75, high=1.0, used=True, reason="it agrees", confirmed=19,
        believed=28, refused=1,
    )  # fmt: skip
    section = _teacher(knowing(FreezeResult.model_construct(snapshot=Snapshot.model_construct(teachers=(belief,)), teacher=asked)))
    assert section is not None
    told = " ".join(section.text)
    for part in (
        "30 questions without a right answer and 20 that measure the agreement were sent to big (eu): 48 answered, 2 cut; 0.2500 EUR",
        "3 because they call tools",
        "The asking ended early: the teacher is busy: HTTP 429. The cycle goes on",
        "accepted by Ada on 2026-01-15",
        "a scorer confirms 19, 28 count because of the agreement with people in their slice, and 1 do not count",
        "rises by 0.125",
    ):
        assert part in told
    assert section.table is not None
    assert section.table.rows == (("aaaaaaaa", "sums", "20", "19", "0.75 to 1.00", "19", "28", "1", "it agrees"),)
    assert _teacher(knowing(FreezeResult.model_construct(snapshot=Snapshot.model_construct(teachers=())))) is None


def test_failed_requests_are_told_with_the_reasons_of_the_server_and_their_counts() -> None:
    probed = ProbeReport(
        name="p", answers=digest("a"), prompts=4, samples_per_prompt=4, answered=2, scored=2, failures=14,
        reasons={"HTTP 400: the context is full": 14}, mean_reward=None, group_coverage=None, best_of_k=None,
    )  # fmt: skip
    result = ProbeResult(report=probed)
    assert "14 requests failed: HTTP 400: the context is full (14)" in result.sentence
    cycle: Any = SimpleNamespace(get=lambda _kind: result, start=SimpleNamespace(tag="v"), baseline=SimpleNamespace(tag="w"))
    section = _probe(cycle)
    assert section is not None
    assert section.text[0].endswith("14 failed: HTTP 400: the context is full (14).")
    known = probed.model_copy(update={"usual_reward": 0.9, "new_prompts": 3})
    said = "The most frequent answers of w, the champion, have a mean reward of 0.900"
    assert probed_champion_text(known, "w") == [f"{said}, on 3 of these prompts, none of which it was trained on."]
    assert probed_champion_text(known.model_copy(update={"new_prompts": None}), "w") == [f"{said}."]
    assert probed_champion_text(probed, "w") == []
    failed = report(failures={"candidate:HTTP 400: the context is full": 3, UNLIKE: 1})
    cycle = SimpleNamespace(report=failed, candidate=SimpleNamespace(tag="v"), baseline=SimpleNamespace(tag="w"))
    section = _gate(cycle)
    assert section is not None
    assert "Prompts without a score: candidate HTTP 400: the context is full (3)." in section.text


def test_the_account_and_the_choice_say_which_rows_the_training_leaves_out() -> None:
    planned = plan_result(evidence={"rated answer": {"demonstration": 9}})
    counts = (LeftOut(what="pairs", rows=9, reasons={"with prompts longer than 48 tokens, by max_length or the model's context": 2}),)
    planned = planned.model_copy(update={"choice": planned.choice.model_copy(update={"left_out": counts})})
    why = "with prompts longer than 48 tokens, by max_length or the model's context"
    sentence = f"The training job leaves rows out one by one: of 9 pairs, excluded: 2 {why}."
    for section in (_evidence(knowing(planned)), _choice(knowing(planned, choice=planned.choice))):
        assert section is not None
        assert section.text[-1] == sentence


def test_report_of_a_promotion_contains_figures_and_approvers() -> None:
    story = words(lived())
    assert "Ended: promoted" in story
    assert "Approved by ada (identity claimed, via cli)" in story
    assert "0.500" in story
    assert "+0.200 (+0.150 to +0.250)" in story
    assert "5 % at" in story


def test_the_gate_says_how_answers_were_sampled() -> None:
    assert sampling(1, 0.0) == []
    assert sampling(1, 0.7) == ["Each model gave one answer to each prompt, sampled at temperature 0.7."]
    assert sampling(3, 1.0) == ["Each model gave 3 answers to each prompt, sampled at temperature 1; the reward of a prompt is their mean."]


def test_the_gate_says_where_the_evaluation_stopped() -> None:
    found = report()
    assert stopping(found) == []
    level = found.comparisons[0].difference.level
    looks = Looks(planned=5, prompts=500, clusters=500, compared=(100, 200), level=level, stopped="futility")
    assert stopping(report(looks=looks)) == [
        "The evaluation stopped after look 2 of 5 (200 of 500 prompts): the rest would hardly show a gain; 600 requests saved. "
        "The interval over all prompts has the error of this look, 2.5e-02 per side."
    ]
    stopped = EvaluateResult(digest=digest("report"), report=report(looks=looks))
    assert stopped.sentence.endswith(
        "stopped after look 2 of 5 (200 of 500 prompts): the rest would hardly show a gain; 600 requests saved"
    )
    assert stopped.sentence.startswith("200 of 200 prompts answered by both, mean reward 0.500 → 0.600")


def test_report_of_a_search_has_its_table_and_its_picture() -> None:
    sim = lived(search=True)
    story = words(sim)
    chosen = sim.view().chosen
    assert "Search over recipes" in story
    found = searched(sim.view())
    assert f"Trial {chosen.trial} ({chosen.variant}) was chosen: score {found.score:.3f}, {found.gain:+.3f} against trial 1" in story
    assert "3 trials were compared, so a gain had to exceed 1.41 standard errors" in story
    assert f"Gain over a cycle without a search: {found.gain:+.3f} with a standard error of {found.error:.3f}." in story
    assert "so it is an optimistic estimate; the gate compares the candidate on other prompts." in story
    for name in ("DPO", "DPO, rate × 3", "DPO, rate × 0.33"):
        assert name in story
    page = render_report(sim.ledger, sim.world.artifacts, "sim", NOW)
    assert "2: DPO, rate × 3: 0." in page, "the tooltip of a trial"
    assert 'class="bar gain"' in page.partition("Search over recipes: score of the first trial")[2].partition("</figure>")[0]
    assert "so gains are optimistic" in page
    assert "Search over recipes: score of the first trial" not in render_report(lived().ledger, sim.world.artifacts, "sim", NOW)


def test_report_of_an_adjusted_attempt_names_cause_and_start_step() -> None:
    asks = (Proposal(rule="kl", adjustment=Adjustment(kl=2.0), good=1),)
    story = words(lived(outcomes=(Outcome.FAILED,), asks=asks))
    assert "The rule 'kl' stopped attempt 1: scripted failed." in story
    assert "Attempt 2 ran with the KL penalty (beta) × 2, starting from step 1 of attempt 1, the last good step" in story


@pytest.mark.parametrize(
    ("how", "state", "word"),
    [
        ({"difference": -0.2}, State.REJECTED, "The candidate fails"),
        ({"difference": 0.0}, State.HELD, "inconclusive, so the candidate is held"),
        ({"bad_canary": True}, State.ROLLED_BACK, "the rollout was rolled back (at 25 %"),
        ({"people": "no"}, State.REJECTED, "ada rejected the training"),
        ({"people": "never"}, State.EXPIRED, "nobody answered"),
        ({"method": Method.NONE}, State.NOT_TRAINED, "scripted"),
        ({"people": "auto"}, State.PROMOTED, "automatic, as configured"),
    ],
)
def test_report_states_every_kind_of_end(how: dict, state: State, word: str) -> None:
    sim = lived(**how)
    assert sim.view().state is state
    assert word in words(sim)


def test_report_can_be_built_after_every_row() -> None:
    sim = lived()
    entries = sim.ledger.read(sim.cycle_stream())
    for n in range(1, len(entries) + 1):
        assert tell(entries[:n], None, {}, sim.clock.now())


def test_page_contains_all_rows_and_no_external_references() -> None:
    sim = lived()
    page = render_report(sim.ledger, sim.world.artifacts, "sim", NOW)
    assert '<a href="#cycle/sim/0001">cycle/sim/0001</a>' in page
    assert 'id="cycle/sim/0001"' in page
    assert "<svg" in page
    assert "promoted" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page
    for row in ledger_table(sim.ledger.read(sim.cycle_stream())).rows:
        assert row[4] in page


def diaried() -> SimulatedLine:
    """A simulated cycle whose jobs report training figures: preempted, then failed, then adjusted."""
    asks = (Proposal(rule="kl", adjustment=Adjustment(kl=2.0), good=1),)
    sim = SimulatedLine(Scenario(seed=1, outcomes=(Outcome.PREEMPTED, Outcome.FAILED), asks=asks))
    saves = sim.executor._save

    def save(spec, incarnation) -> None:
        step, log = sim.executor.step[spec.name], sim.executor.log.setdefault(spec.name, [])
        figures = {"loss": 1 / step + spec.attempt, "reward": 0.1 * step, "kl": "nan", "grad_norm": 2.0}
        log.append(JobEvent(at=float(len(log)), incarnation=incarnation, kind="progress", step=step, data=figures))
        saves(spec, incarnation)

    sim.executor._save = save
    sim.live()
    return sim


def test_page_draws_the_training_curves() -> None:
    sim = diaried()
    page = render_report(sim.ledger, sim.world.artifacts, "sim", NOW)
    for words_ in (
        "Training: Loss",
        "Training: Mean reward",
        "Training: Gradient norm",
        "attempt 1, incarnation 1: preempted after step 2",
    ):
        assert words_ in page
    assert "attempt 2 starts" in page
    assert 'class="curve newest"' in page
    assert 'class="checkpoint"' in page
    assert "KL divergence from the start model" not in page, "all values are NaN, so there is no curve"


@pytest.mark.slow
def test_page_fits_a_phone(tmp_path: Path) -> None:
    sim = diaried()
    page = tmp_path / "report.html"
    page.write_text(render_report(sim.ledger, sim.world.artifacts, "sim", NOW), encoding="utf-8")
    assert content_width(page, tmp_path) == PHONE


def test_accepted_line_contains_the_steps_that_led_to_the_model() -> None:
    sim = diaried()
    cycle = sim.view()
    logs = read_event_logs(cycle, sim.world.artifacts)
    line = accepted_line(cycle, logs, cycle.checkpoint.attempt)
    assert cycle.checkpoint.attempt == 2
    assert [step.step for step in line] == [1, 2, 3]
    assert [step.figures["loss"] for step in line] == [1 + 1, 1 / 2 + 2, 1 / 3 + 2], (
        "step 1 belongs to attempt 1, from which attempt 2 resumed"
    )
    assert all("kl" not in step.figures for step in line)
    assert read_event_logs(cycle, MemoryArtifacts()) == {}, "a missing event log is not an error"


def test_changed_ledger_gives_an_error_instead_of_a_report() -> None:
    sim = lived()
    rows = sim.ledger.rows[sim.cycle_stream()]
    rows[0] = rows[0].model_copy(update={"data": {**rows[0].data, "reason": "another one"}})
    with pytest.raises(Permanent, match="the ledger was changed"):
        render_report(sim.ledger, sim.world.artifacts, "sim", NOW)


def test_text_from_operators_is_escaped() -> None:
    sim = SimulatedLine(Scenario(seed=1, people="no"))
    sim.note = "<script>alert(1)</script>"
    sim.live()
    page = render_report(sim.ledger, sim.world.artifacts, "sim", NOW)
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_rollout_by_mirrored_prompts_shows_its_pairs_and_no_requests() -> None:
    pairs = SequentialTest(estimate=0.25, error=0.05, margin=0.1, equal=1.5, equal_at=3.0, harm=-1.5, harm_at=4.6, n=24, people=12)
    judgement = StepJudgement(result=StepResult.WAIT, reasons=("24 of at least 50 mirrored pairs",), tests={"mirrored": pairs})
    judged = entry(row_of("judged", Judged(index=0, weight=1, judgement=judgement), "0"), 1, "rollout/sim/0001")
    shown = SimpleNamespace(opened=SimpleNamespace(settings=RolloutSettings(mirror=400)), judgements=(judged,), steps=(), end=None)
    table = _rollout(cast(RolloutView, shown)).table  # type: ignore[union-attr]
    assert table is not None
    assert dict(zip(table.columns, table.rows[0], strict=True)) == {
        "time": f"{judged.at:%H:%M:%S}",
        "weight": "1 %",
        "requests": "–",
        "rating difference": "–",
        "error difference": "–",
        "mirrored pairs": "24: +0.250 ± 0.050",
        "judgement": "wait: 24 of at least 50 mirrored pairs",
    }
