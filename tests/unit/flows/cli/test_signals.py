"""Tests of signals from the file of an application to the training set, with the commands of an operator."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ratchet.contracts.fakes import FakeDatasets
from ratchet.flows.cli.main import cli
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.cli.homes import home_of
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import raw
from tests.unit.materializer.small_datasets import HELD, LATER, questions

LOOP = """
[line]
name = "team"
served_model = "team"
[[sources]]
name = "app"
kind = "jsonl"
path = "traces.jsonl"
[[rewards]]
name = "user_feedback"
[[rewards]]
name = "exact_match"
[snapshot]
demonstration_min = 0.7
[holdout]
development = 0
near_duplicates = false
"""
USE = '[signals]\nuse = ["copied", "regenerated"]\n'
RATED, UNRATED = 80, 12

pytestmark = pytest.mark.slow


def _traces() -> list[dict[str, Any]]:
    """Return rated answers with signals that agree, answers that only have signals, and a held-out prompt with its reference."""
    rows = [{"id": "held", "messages": HELD, "response": "no", "reference": "yes", "user_id": "h"}]
    for n, text in enumerate(questions(False, RATED + UNRATED)):
        right = n % 2 == 0
        row = {
            "id": f"t{n}",
            "messages": text,
            "response": f"answer {n}",
            "user_id": f"u{n}",
            "signals": ["copied" if right else "regenerated"],
        }
        rows.append(row | ({"feedback": int(right)} if n < RATED else {}))
    return [{"timestamp": 1_790_000_000, "consent": True, **row} for row in rows]


def _run(*arguments: str) -> Any:
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    assert result.exit_code == 0, f"{arguments}: {result.output} {result.exception!r}"
    return json.loads(result.stdout)


def _exported(loop: str, out: str) -> tuple[int, str]:
    """Export what a cycle would train on now. Return the number of demonstrations, and the card."""
    Path("loop.toml").write_text(loop, encoding="utf-8")
    told = _run("dataset", "export", "loop.toml", "--now", "--format", "trl", "--out", out, "--by", "ada")
    return told["rows"]["sft.jsonl"], Path(out, "card.md").read_text(encoding="utf-8")


def test_signals_are_measured_first_and_then_label_answers_if_the_loop_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
    Path("loop.toml").write_text(LOOP, encoding="utf-8")
    Path("traces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _traces()), encoding="utf-8")
    _run("ingest", "loop.toml")
    before, card = _exported(LOOP, "measured")
    line = next(line for line in card.splitlines() if line.startswith("| copied"))
    assert line.startswith("| copied | 46 | 40 | 40 | 40 | 1.00 (0.8")
    assert line.endswith("| 0.00 | 0 | no: it passes, and signals.use does not name it |")
    after, card = _exported(LOOP + USE, "used")
    assert after == before + UNRATED / 2, "the copied answers without a rating became demonstrations"
    assert "| 6 | yes: it agrees with the ratings |" in card
    assert "signal 12" in card, "the deciding tier of the answers that only have signals"


def test_explain_shows_the_table_of_a_freeze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = make_datasets(tmp_path, make_loop(rewards=[{"name": "user_feedback"}], signals={"use": ["copied"]}))
    datasets.ingest(raw("".join(json.dumps(row) + "\n" for row in _traces()).encode(), "app", "jsonl"))
    measured = datasets.freeze("s", LATER, datasets.edition(1)).signals
    sim = SimulatedLine(Scenario(seed=1))
    freeze = FakeDatasets.freeze
    monkeypatch.setattr(FakeDatasets, "freeze", lambda *given: freeze(*given).model_copy(update={"signals": measured}))
    sim.live()
    monkeypatch.setenv("RATCHET_HOME", str(home_of(sim, tmp_path).root))
    result = CliRunner().invoke(cli, ["explain", "sim/1"])
    assert result.exit_code == 0
    shown = result.stdout.partition("\nSignals\n")[2].partition("\nProbe\n")[0]
    assert re.search(r"copied +46 +40 +40 +40 +1\.00 \(0\.8\d to 1\.00\) +0\.00 +6 +yes: it agrees with the ratings", shown)
    assert re.search(r"regenerated +46 +40 +40 +40 .* 0 +no: it passes", shown)
