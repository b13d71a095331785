"""Contract tests for every registry: the fake, and MLflow on a SQLite file, in this process and in one of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.fakes import FakeRegistry, FakeWorld, fake_model
from ratchet.contracts.jobs.training import StepFigures
from ratchet.contracts.serving import ModelVersion


def version(number: int, line: str = "line-a") -> ModelVersion:
    return ModelVersion(line=line, number=number, tag=f"v-{line}-{number}", model=fake_model(str(number)), cycle=None)


@pytest.fixture(scope="module", params=["fake", *(pytest.param(one, marks=pytest.mark.slow) for one in ("mlflow", "process"))])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that opens the same registry again, as another process would."""
    if request.param == "fake":
        registry = FakeRegistry(FakeWorld())
        return lambda: registry
    from ratchet.gates.registry import MlflowRegistry
    from ratchet.gates.registry_process import ProcessRegistry

    folder = tmp_path_factory.mktemp("mlflow")
    kind = MlflowRegistry if request.param == "mlflow" else ProcessRegistry
    return lambda: kind(f"sqlite:///{folder / 'mlflow.db'}", folder)


def test_unknown_line_has_no_aliases(opened: Any) -> None:
    assert opened().aliases("nobody") == {}


def test_version_is_registered_once(opened: Any, tmp_path: Path) -> None:
    tags, metrics = {"ratchet.cycle": "cycle/a/0001"}, {"gate.slice:a.champion": 0.5, "loss": 0.25}
    references = {opened().register(version(1), tmp_path, tags, metrics) for _ in range(3)}
    assert len(references) == 1
    assert opened().register(version(2), tmp_path, tags, {}) not in references


def test_alias_points_to_its_latest_target(opened: Any, tmp_path: Path) -> None:
    for number in (3, 4):
        opened().register(version(number, "line-b"), tmp_path, {}, {})
    opened().alias("line-b", "champion", "v-line-b-3")
    opened().alias("line-b", "candidate", "v-line-b-4")
    assert opened().aliases("line-b") == {"champion": "v-line-b-3", "candidate": "v-line-b-4"}
    opened().alias("line-b", "champion", "v-line-b-4")
    opened().alias("line-b", "champion", "v-line-b-4")
    assert opened().aliases("line-b")["champion"] == "v-line-b-4"
    assert "line-b" not in opened().aliases("line-a")


def test_an_alias_is_removed_and_the_others_stay(opened: Any, tmp_path: Path) -> None:
    opened().register(version(5, "line-c"), tmp_path, {}, {})
    opened().alias("line-c", "candidate", "v-line-c-5")
    opened().alias("line-c", "of-a-user", "v-line-c-5")
    for _ in range(2):
        opened().unalias("line-c", "candidate")
    assert opened().aliases("line-c") == {"of-a-user": "v-line-c-5"}


def test_a_version_is_described_again_and_an_unknown_one_is_not(opened: Any, tmp_path: Path) -> None:
    opened().register(version(6, "line-d"), tmp_path, {}, {})
    for card in ("# first", "# second"):
        opened().describe("line-d", "v-line-d-6", card)
    with pytest.raises(Retryable, match="v-unknown"):
        opened().describe("line-d", "v-unknown", "# card")


@pytest.mark.slow
def test_mlflow_shows_the_card_and_stores_it_as_a_file(tmp_path: Path) -> None:
    from ratchet.gates.registry import CARD, MlflowRegistry, _open_client

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    registry = MlflowRegistry(uri, tmp_path)
    registry.register(version(1), tmp_path, {}, {})
    long = "# card\n" + "x" * 10_000
    for card in ("# former", long):
        registry.describe("line-a", "v-line-a-1", card)
    (stored,) = _open_client(uri).search_model_versions("name = 'line-a'")
    assert stored.description.startswith("# card\nxxx")
    assert stored.description.endswith(f"the file {CARD} of the run has the rest")
    assert [path.read_text() for path in tmp_path.rglob(CARD)] == [long]


@pytest.mark.slow
def test_mlflow_shows_lineage_and_metrics_once(tmp_path: Path) -> None:
    import mlflow

    from ratchet.gates.registry import MlflowRegistry

    uri = f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}"
    for _ in range(2):
        MlflowRegistry(uri, tmp_path / "mlflow").register(
            version(1), tmp_path / "model", {"ratchet.plan": "p" * 64}, {"gate.slice:a.new": 0.5}
        )
    client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
    (found,) = client.search_model_versions("name = 'line-a'")
    assert found.tags == {"ratchet.plan": "p" * 64, "ratchet.tag": "v-line-a-1"}
    assert found.source == str(tmp_path / "model")
    run = client.get_run(found.run_id)
    assert run.data.metrics == {"gate.slice/a.new": 0.5}
    assert run.info.status == "FINISHED"
    assert len(client.search_runs([run.info.experiment_id])) == 1


@pytest.mark.slow
def test_mlflow_shows_the_curves_of_the_training_once(tmp_path: Path) -> None:
    import mlflow

    from ratchet.gates.registry import MlflowRegistry

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    steps = [StepFigures(step=n, at=1000.0 + n, figures={"loss": 1 / n, "reward": 0.01 * n}) for n in range(1, 701)]
    for _ in range(2):
        MlflowRegistry(uri, tmp_path)._run(version(1), {}, steps)
    client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("ratchet/line-a").experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in history] == [(n, 1 / n) for n in range(1, 701)]


@pytest.mark.slow
def test_unavailable_mlflow_and_unknown_version_are_retryable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ratchet.gates.registry import MlflowRegistry

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(Retryable, match="is unavailable"):
        MlflowRegistry("http://user:secret-word@127.0.0.1:1", tmp_path).aliases("line-a")
    local = MlflowRegistry(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path)
    local.register(version(1), tmp_path, {}, {})
    with pytest.raises(Retryable, match="no version"):
        local.alias("line-a", "champion", "v-unknown")


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("gate.slice:math.champion", "gate.slice/math.champion"),
        ("gate.slice:a(b)?", "gate.slice/a_b__"),
        ("ärger", "_rger"),
        ("/../a//b/", "a/b"),
        ("", "_"),
        ("x" * 300, "x" * 250),
    ],
)
def test_metric_name_is_valid_for_mlflow(name: str, taken: str) -> None:
    from ratchet.gates.registry import metric_name

    assert metric_name(name) == taken


@pytest.mark.slow
def test_unusual_metric_names_are_accepted_and_an_invalid_alias_is_permanent(tmp_path: Path) -> None:
    from ratchet.gates.registry import MlflowRegistry

    registry = MlflowRegistry(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path)
    names = ("a(b)", "ärger", "it's?", "../up", "/abs", "a//b", "x" * 400, "a{b}\n")
    registry.register(version(1), tmp_path, {}, {f"gate.slice:{name}.champion": 0.5 for name in names})
    registry.alias("line-a", "champion", "v-line-a-1")
    assert registry.aliases("line-a") == {"champion": "v-line-a-1"}
    look = (
        "import sys; from pathlib import Path; from ratchet.gates.registry import MlflowRegistry; "
        f"found = MlflowRegistry('sqlite:///{tmp_path / 'mlflow.db'}', Path()).aliases('line-a'); print(found, 'mlflow' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "{'champion': 'v-line-a-1'} False", "a look at what is registered must not load MLflow"
    with pytest.raises(Permanent, match="rejected the request as invalid"):
        registry.alias("line-a", "not/an alias", "v-line-a-1")
