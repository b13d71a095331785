"""Tests of the model card: its licence, and its text for versions in every state."""

from __future__ import annotations

import pytest

from ratchet.contracts.fakes import fake_model
from ratchet.contracts.serving import ModelVersion
from ratchet.contracts.steps import State
from ratchet.flows.core.folds.line import LineView
from ratchet.flows.core.model_card import base_licence, model_card
from tests.simulation.simulated_line import Scenario, SimulatedLine


@pytest.mark.parametrize(
    ("files", "licence"),
    [
        ({}, "unknown"),
        ({"README.md": "---\nlanguage: en\nlicense: apache-2.0\n---\n# A model"}, "apache-2.0"),
        ({"README.md": "no front matter\nlicense: none"}, "unknown"),
        ({"README.md": "---\nlicense:\n- a\n---\n", "config.json": '{"license": "mit"}'}, "mit"),
        ({"config.json": "not JSON", "LICENSE.txt": "\n  Community License\n\nlong text"}, "Community License"),
        ({"LICENSE": "x" * 200}, "unknown"),
        ({"config.json": '["license"]'}, "unknown"),
    ],
)
def test_the_licence_is_what_the_folder_states(files: dict[str, str], licence: str) -> None:
    assert base_licence({name: name for name in files}, lambda key: files[key].encode()) == licence


def test_the_card_of_an_adopted_model_says_that_nothing_is_known() -> None:
    base = ModelVersion(line="shop", number=0, tag="v-0", model=fake_model("0"), cycle=None)
    page = model_card(base, None, LineView("shop", 1, champion=base, base=base), "mit")
    assert "- Base: v-0, licence mit" in page
    assert "- State: champion" in page
    assert "knows nothing of its training data" in page


def test_the_card_of_a_promoted_version_has_data_training_evaluation_and_approvals() -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    sim.live()
    cycle = sim.view()
    assert cycle.state is State.PROMOTED
    assert cycle.candidate is not None
    page = model_card(cycle.candidate, cycle, sim.context.line_view(), "unknown")
    frozen = cycle.report
    assert frozen is not None
    overall = next(one for one in frozen.comparisons if one.name == "overall")
    for words in (
        f"# {cycle.line}, version {cycle.number} ({cycle.candidate.tag})",
        "- State: champion",
        "licence unknown",
        "- Consent ",
        "- Method ",
        f"| overall | {overall.n} | {overall.champion:.3f} | {overall.candidate:.3f} | {overall.difference.estimate:+.3f} (",
        "- Verdict of the gate: pass",
        "approved by",
        "Harmful and harmless prompts were not compared",
    ):
        assert words in page, words


def test_a_recall_and_a_failed_check_are_limits() -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    sim.live()
    cycle, line = sim.view(), sim.context.line_view()
    assert cycle.candidate is not None
    recalled = LineView(line.line, line.seq, base=line.base, recalled={cycle.candidate.tag: "rows were erased"})
    page = model_card(cycle.candidate, cycle, recalled, "mit")
    assert "- State: recalled" in page
    assert "- Recalled: rows were erased" in page
