"""Tests that the approval form shows all evidence, and that no text can break its tables."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.cycle import ApprovalKind
from ratchet.flows.core.decide import Wait
from ratchet.flows.engine.advance import drive
from ratchet.flows.engine.evidence import approval_evidence
from ratchet.flows.engine.line import open_cycle
from ratchet.flows.prefect.cycle.approval_form import _fixed, evidence_page, fitting, form_text, table
from tests.simulation.searched import searched
from tests.simulation.simulated_line import Scenario, SimulatedLine

EXPIRES = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


def _waiting(kind: ApprovalKind, search: bool = False) -> dict[str, object]:
    """Return the evidence of a simulated cycle that waits for the approval `kind`."""
    return approval_evidence(_asked(kind, search).view(), kind)


def _asked(kind: ApprovalKind, search: bool = False) -> SimulatedLine:
    """Return a line with a cycle that waits for the approval `kind`."""
    sim = SimulatedLine(Scenario(seed=1, search=search))
    cycle = open_cycle(sim.context, "500 new traces")
    while True:
        assert isinstance(drive(cycle, sim.context, timeout=30), Wait)
        if kind in sim.view().asked:
            return sim
        sim._people()


def test_training_form_shows_method_facts_and_recipe() -> None:
    page = evidence_page("approval/sim/0001/training", _waiting(ApprovalKind.TRAINING), EXPIRES)
    assert page.startswith("### Train **sim** with DPO on 100 pairs?")
    assert "estimate" in page.split("\n\n")[1], "the cost comes first"
    assert "open until 2026-03-01 12:30 UTC" in page
    assert "| pairs | 100 |" in page
    assert "| steps | 10 |" in page
    assert "500 new traces" in page


def test_training_form_shows_the_warnings_of_the_choice_before_its_rules() -> None:
    evidence: dict[str, Any] = dict(_waiting(ApprovalKind.TRAINING))
    assert "Warning" not in evidence_page("r", evidence, EXPIRES)
    evidence["choice"] = evidence["choice"] | {"warnings": ["the training has no row of long"]}
    page = evidence_page("r", evidence, EXPIRES)
    assert page.index("**Warning:** the training has no row of long.") < page.index("**Measured facts**")


def test_training_form_shows_the_first_sentence_of_two_warnings_and_counts_the_others() -> None:
    evidence: dict[str, Any] = dict(_waiting(ApprovalKind.TRAINING))
    first, long = "the training has no row of long (30 prompts); 0.5 of all. The model can forget them", "word " * 200
    for warnings, shown in (
        ([first], "**Warning:** the training has no row of long (30 prompts); 0.5 of all."),
        ([first, "b"], "**Warning:** the training has no row of long (30 prompts); 0.5 of all. **Warning:** b."),
        (["a", "b", "c", "d"], "**Warning:** a. **Warning:** b. 2 more in the artifact."),
    ):
        evidence["choice"] = evidence["choice"] | {"warnings": warnings}
        assert form_text("r", evidence, EXPIRES, "links").split("\n\n")[2] == shown
    evidence["choice"] = evidence["choice"] | {"warnings": [long] * 9}
    text = form_text("r", evidence, EXPIRES, "links")
    assert len(text) < 1500
    assert "word …. **Warning:** word" in text


def test_rollout_form_shows_the_gate_the_intervals_and_the_plan() -> None:
    page = evidence_page("approval/sim/0001/rollout", _waiting(ApprovalKind.ROLLOUT), EXPIRES)
    assert "replacing v-" in page
    assert "| overall | 100 | +0.200 (+0.150 to +0.250) |" in page
    assert "- **pass: better**: +0.15 to +0.25" in page
    assert (
        page.split("\n\n")[1]
        == "**+0.200 better (+0.150 to +0.250).** Gate: pass. There are no slices; the users get it in steps of 5 → 25 → 100 %."
    )
    assert "5 % → 25 % → 100 %" in page
    assert page.index("Gate:") < page.index("Candidate against champion")
    assert "median and p95 latency both exceed 1.5 × the champion's" in page, "the judge needs both"


def test_rollout_form_says_how_sampled_answers_were_compared() -> None:
    evidence = _waiting(ApprovalKind.ROLLOUT)
    assert "sampled at temperature" not in evidence_page("r", evidence, EXPIRES), "the answers were greedy"
    evidence["report"] |= {"samples": 2, "temperature": 0.7}  # type: ignore[operator]
    page = evidence_page("r", evidence, EXPIRES)
    assert "Each model gave 2 answers to each prompt, sampled at temperature 0.7; the reward of a prompt is their mean." in page


def test_rollout_form_says_where_the_evaluation_stopped() -> None:
    evidence = _waiting(ApprovalKind.ROLLOUT)
    assert "stopped" not in evidence_page("r", evidence, EXPIRES)
    report: dict[str, Any] = evidence["report"]  # type: ignore[assignment]
    report["looks"] = LOOKS | {"level": report["comparisons"][0]["difference"]["level"]}
    page = evidence_page("r", evidence, EXPIRES)
    assert "The evaluation stopped after look 1 of 2 (100 of 200 prompts): the gain is shown; 200 requests saved. " in page


def _with_slices(*sizes: int, low: float = -0.1, high: float = 0.2) -> dict[str, Any]:
    evidence: dict[str, Any] = dict(_waiting(ApprovalKind.ROLLOUT))
    overall = evidence["report"]["comparisons"][0]
    interval = overall["difference"] | {"low": low, "high": high}
    slices = [overall | {"name": f"slice:s{place}", "n": n, "difference": interval} for place, n in enumerate(sizes)]
    return evidence | {"report": evidence["report"] | {"comparisons": [overall, *slices]}}


def test_slices_that_cannot_be_judged_are_not_called_not_worse() -> None:
    def said(*sizes: int, **interval: float) -> str:
        return form_text("r", _with_slices(*sizes, **interval), EXPIRES, "links").split("\n\n")[1]

    assert "None of the 8 slices can be judged: each has fewer than 20 prompts" in said(*[3] * 8)
    assert "No slice is shown worse; **6 of 8 slices cannot be judged: fewer than 20 prompts**" in said(20, 50, *[19] * 6)
    assert "Shown worse: s0; **1 of 2 slices" in said(30, 5, low=-0.3, high=-0.1)
    assert "cannot be judged" not in said(20, 20)


def test_the_form_is_short_and_names_a_gate_that_did_not_pass() -> None:
    for kind in ApprovalKind:
        evidence = _waiting(kind, search=True)
        text = form_text("approval/sim/0001/x", evidence, EXPIRES, "[Report](http://127.0.0.1/ratchet/sim)")
        assert len(text) < 1000
        assert evidence_page("approval/sim/0001/x", evidence, EXPIRES).startswith(text.split("\n\n")[0])
    unclear: dict[str, Any] = dict(_waiting(ApprovalKind.ROLLOUT))
    checks = [{"check": "slices", "result": "inconclusive", "reason": "x"}]
    unclear["verdict"] = {"result": "inconclusive", "checks": checks}
    assert "Gate: INCONCLUSIVE (slices INCONCLUSIVE)." in form_text("r", unclear, EXPIRES, "")


def test_no_text_of_a_person_is_read_as_markup() -> None:
    image = "![x](https://example.com/a.png) <img src=x> **bold**"
    for kind in ApprovalKind:
        evidence: dict[str, Any] = dict(_waiting(kind)) | {"opened": image}
        if kind is ApprovalKind.TRAINING:
            evidence["choice"] = evidence["choice"] | {"reason": image, "warnings": [image]}
        for text in (form_text("r", evidence, EXPIRES, ""), evidence_page("r", evidence, EXPIRES)):
            assert "![" not in text
            assert not re.search(r"(?<!\\)<img", text)


LOOKS = {"planned": 2, "prompts": 200, "clusters": 200, "compared": [100], "stopped": "success"}


def test_training_form_shows_the_recipes_of_a_search_and_what_they_cost_at_most() -> None:
    page = evidence_page("approval/sim/0001/training", _waiting(ApprovalKind.TRAINING, search=True), EXPIRES)
    assert "**Search over 3 recipes**, in this order. The first one is the recipe of the plan." in page
    assert "All others together take at most 1,000,000 s of job time" in page
    assert "| DPO, rate × 3 | – × 3 | – |" in page
    assert (
        "**Highest cost: 325.78 hours of job time (2 attempts of at most 86,400 s for the first recipe and 1,000,000 s for all other "
        "recipes), no GPU, nodes: 1.**" in page
    )
    assert "Search" not in evidence_page("approval/sim/0001/training", _waiting(ApprovalKind.TRAINING), EXPIRES)


def test_training_form_shows_the_price_that_the_service_knows() -> None:
    sim = SimulatedLine(Scenario(seed=1, search=True))
    sim.context = replace(sim.context, price=lambda seconds: seconds / 1000)
    assert isinstance(drive(open_cycle(sim.context, "500 new traces"), sim.context, timeout=30), Wait)
    asked = next(row for row in sim.ledger.read(sim.cycle_stream()) if row.kind == "asked")
    page = evidence_page(asked.stream, json.loads(sim.world.artifacts.get(asked.data["evidence"])), EXPIRES)
    assert "no GPU, nodes: 1, 1172.80 by the price table.**" in page


def test_rollout_form_shows_the_results_of_the_search() -> None:
    sim = _asked(ApprovalKind.ROLLOUT, search=True)
    page = evidence_page("approval/sim/0001/rollout", approval_evidence(sim.view(), ApprovalKind.ROLLOUT), EXPIRES)
    won, found = sim.view().chosen, searched(sim.view())
    assert won is not None
    chosen, gain, cost, rows, bars = page.partition("**Search over recipes**")[2].split("\n\n")[:5]
    assert f"Chosen: trial {won.trial} ({won.variant}): score {found.score:.3f}, {found.gain:+.3f} against trial 1" in chosen
    assert gain.startswith(f"Gain over a cycle without a search: {found.gain:+.3f} with a standard error of {found.error:.3f}.")
    assert "measured on the development prompts that chose the trial, so it is an optimistic estimate" in gain
    assert re.fullmatch(r"Trial 1 took \d+ s; the trials after it took \d+ s of the budget of 1,000,000 s\.", cost)
    table_rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows.splitlines()]
    assert table_rows[0] == ["trial", "steps", "score", "against trial 1"]
    assert [row[0] for row in table_rows[2:]] == ["1: DPO", "2: DPO, rate × 3", "3: DPO, rate × 0.33"]
    assert bars.splitlines()[0] == "```text"
    assert bars.splitlines()[won.trial].split("  ")[-1] == "chosen"
    assert bars.splitlines()[-1] == "```"


def test_no_line_of_a_picture_ends_its_block() -> None:
    assert _fixed(["1: a ```", "```", "b\n```"]).count("```") == 2


@given(st.text(max_size=40))
def test_any_text_stays_in_one_table_cell(text: str) -> None:
    line = table(["a", "b"], [[text, "x"]]).split("\n")
    assert len(line) == 3
    bare = line[2].replace("\\\\", "").replace("\\|", "")
    assert bare.count("|") == 3


def test_no_table_is_wider_than_the_form_whatever_the_names() -> None:
    for kind in ApprovalKind:
        evidence = _waiting(kind, search=True)
        for one in evidence["report"]["comparisons"] if kind is ApprovalKind.ROLLOUT else ():
            one["name"] += " of a slice with a very long name"
        page = evidence_page("approval/sim/0001/x", evidence, EXPIRES)
        tables = [block.splitlines() for block in page.split("\n\n") if block.startswith("|")]
        assert tables
        for lines in tables:
            cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "---" not in line]
            assert sum(max(map(len, column)) + 4 for column in zip(*cells, strict=True)) <= 66, "its last column would be cut off"


def test_a_table_that_does_not_fit_becomes_a_list() -> None:
    assert fitting(["a", "b"], [["x", "y"]]).startswith("| a | b |")
    assert fitting(["a", "b"], [["x", "y" * 80]]) == f"- **x**: {'y' * 80}"
    assert fitting(["a", "b", "c"], [["x", "1", "z" * 80]]) == f"- **x**: b 1; c {'z' * 80}"
