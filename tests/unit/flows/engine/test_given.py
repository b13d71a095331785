"""Tests of a cycle with a model that was trained elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.contracts.cycle import ApprovalKind
from ratchet.contracts.data.datasets import Cursor
from ratchet.contracts.errors import Permanent, Rejected
from ratchet.contracts.steps import ONLY_TRAINED, State, Step
from ratchet.flows.engine.given import add_candidate
from ratchet.flows.engine.line import open_cycle, retry_cycle
from ratchet.flows.report.story import tell
from tests.simulation.simulated_line import Scenario, SimulatedLine


def model(folder: Path, template: str = "") -> Path:
    """Write the smallest folder that counts as a model."""
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(template)
    return folder


def test_a_given_model_is_judged_and_rolled_out_without_a_training() -> None:
    sim = SimulatedLine(Scenario(seed=1, given=()))
    sim.live()
    view = sim.view()
    assert view.state is State.PROMOTED
    assert set(view.steps) == set(Step) - ONLY_TRAINED
    assert all(view.has(step) for step in view.steps)
    assert not view.incarnations
    assert view.method_name == "given"
    assert not sim.executor.specs, "no job was built"
    assert view.candidate is not None
    assert view.candidate.model == view.given.model  # type: ignore[union-attr]
    assert ApprovalKind.TRAINING not in view.asked
    assert sim.context.line_view().champion == view.candidate


def test_another_template_is_for_a_person_even_if_the_loop_file_approves_by_itself() -> None:
    same = SimulatedLine(Scenario(seed=1, people="auto", given=()))
    same.live()
    assert same.view().state is State.PROMOTED
    assert same.view().asked == {}
    other = SimulatedLine(Scenario(seed=1, people="auto", given=("chat template",)))
    other.live()
    assert other.view().state is State.EXPIRED
    assert ApprovalKind.ROLLOUT in other.view().asked


def test_the_story_says_where_the_model_comes_from_and_what_it_changes() -> None:
    sim = SimulatedLine(Scenario(seed=1, given=("tokenizer", "chat template")))
    sim.live()
    text = " ".join(
        sentence for section in tell(sim.ledger.read(sim.cycle_stream()), None, {}, sim.clock.now()) for sentence in section.text
    )
    assert "the candidate was trained elsewhere, and copied from /models/given" in text
    assert "It changes the tokenizer and the chat template of the champion." in text
    assert "training starts" not in text


def test_the_folder_is_copied_and_compared_with_the_champion(tmp_path: Path) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    cycle, given = add_candidate(sim.context, model(tmp_path / "m", "{{ messages }}"), "ada", "from the team's own run")
    assert cycle == "cycle/sim/0001"
    assert given.differs == ("tokenizer", "chat template", "generation config")
    opened = sim.view().opened
    assert (opened.actor, opened.reason) == ("ada", "model of ada: from the team's own run")
    assert opened.given == given
    with pytest.raises(Rejected, match="still open"):
        add_candidate(sim.context, tmp_path / "m", "ada", "again")


def test_adapters_code_and_what_is_no_model_are_refused(tmp_path: Path) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    (model(tmp_path / "adapter") / "adapter_config.json").write_text("{}")
    (model(tmp_path / "code") / "modeling.py").write_text("")
    for name, said in (("adapter", "merge it into its base"), ("code", "Python code"), ("no", "not a folder")):
        with pytest.raises(Permanent, match=said):
            add_candidate(sim.context, tmp_path / name, "ada", "why")
    assert not sim.ledger.read(sim.cycle_stream())


@pytest.mark.parametrize("is_given", [True, False])
def test_new_traces_still_wait_for_a_training(tmp_path: Path, is_given: bool) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    sim.context.datasets.cursor = lambda: Cursor(traces=7, feedback=0, newest=None)  # type: ignore[method-assign]
    if is_given:
        add_candidate(sim.context, model(tmp_path / "m"), "ada", "why")
    else:
        open_cycle(sim.context, "why")
    assert sim.context.line_view().last_traces == (0 if is_given else 7)


def test_a_retry_judges_the_same_model() -> None:
    sim = SimulatedLine(Scenario(seed=1, given=(), difference=0.0))
    sim.live()
    assert sim.view().ended
    retry_cycle(sim.context, 1, "ada")
    assert sim.context.cycle_view("cycle/sim/0002").given == sim.view().given
