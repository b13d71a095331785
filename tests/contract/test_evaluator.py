"""Contract tests for every evaluator: the fake, and the paired evaluator with one and with several looks."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.contracts.data.datasets import HoldoutEdition
from ratchet.contracts.evaluation import ChatRequest, EvalReport
from ratchet.contracts.fakes import FakeClient, FakeEvaluator, FakeRewards, FakeWorld, MemoryArtifacts, fake_model
from ratchet.contracts.ids import digest
from ratchet.contracts.loop import GateSettings
from ratchet.contracts.ports import Evaluator
from ratchet.gates.evaluation.evaluator import PairedEvaluator

Case = tuple[Callable[[], Evaluator], HoldoutEdition]


@pytest.fixture(params=["fake", "one look", "five looks"])
def case(request: pytest.FixtureRequest) -> Case:
    """A function that opens an evaluator, and an edition for it."""
    artifacts, world = MemoryArtifacts(), FakeWorld()
    rows = [{"prompt": json.dumps([{"role": "user", "content": str(n)}]), "reference": "yes", "slice": None} for n in range(300)]
    buffer = io.BytesIO()
    schema = pa.schema([("prompt", pa.string()), ("reference", pa.string()), ("slice", pa.string())])
    pq.write_table(pa.Table.from_pylist(rows, schema), buffer)
    prompts = artifacts.put(buffer.getvalue())
    edition = HoldoutEdition(line="l", number=3, prompts=prompts, size=300, golden=None, normaliser=1, fraction=0.2)
    if request.param == "fake":
        return lambda: FakeEvaluator(world, 0.2), edition
    looks = {"one look": 1, "five looks": 5}[request.param]
    return lambda: PairedEvaluator(artifacts, FakeRewards(), GateSettings(looks=looks)), edition


def right(share: int) -> Callable[[ChatRequest], str]:
    """Return a model that answers `share` percent of the prompts right."""
    return lambda request: "yes" if int(digest(request.messages[0]["content"])[:4], 16) % 100 < share else "nay"


def evaluated(case: Case, level: float = 0.98, old: int = 50, new: int = 70) -> EvalReport:
    sides = [(fake_model(name), FakeClient(right(share))) for name, share in (("old", old), ("new", new))]
    return case[0]().evaluate(case[1], sides[0], sides[1], lambda *_: None, level)


def test_the_report_names_its_models_and_its_edition(case: Case) -> None:
    report = evaluated(case)
    assert (report.champion, report.candidate, report.edition) == (fake_model("old").id, fake_model("new").id, 3)
    overall = report.comparison("overall")
    assert overall is not None
    assert overall.difference.estimate > 0


@pytest.mark.parametrize("level", [0.9, 0.98])
def test_the_intervals_have_at_least_the_level_of_the_call(case: Case, level: float) -> None:
    report = evaluated(case, level)
    assert all(one.difference.level >= level for one in report.comparisons)
    assert [one for one in report.comparisons if one.name != "overall" and one.difference.level != level] == []


@pytest.mark.slow
def test_a_repeated_call_returns_the_same_report(case: Case) -> None:
    assert evaluated(case) == evaluated(case)
    assert evaluated(case, old=70, new=50) == evaluated(case, old=70, new=50)


def test_a_report_that_stopped_early_says_so(case: Case) -> None:
    report = evaluated(case, old=70, new=50)
    assert (report.stop is None) == (report.looks is None or report.asked == report.looks.prompts)
