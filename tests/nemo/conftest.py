"""The release, tiny models, and benches for the conformance suite on NeMo RL."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.nemo import results
from tests.nemo.runs import Bench, Run, ray_folder, release_root
from tests.unit.trainers.conftest import WORDS, write_model

EVEN = (*WORDS, "extra")
"""A vocabulary of 20 words, which two GPUs can share."""
ADAPTER = {"lora": {"rank": 4, "alpha": 8.0, "dropout": 0.0}, "learning_rate": 0.03, "steps": 6, "save_every": 3}
"""Recipe of an adapter."""
SPENT = pytest.StashKey[float]()
"""Seconds of a case so far."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the suite as soak: only `make nemo` runs it."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.soak)
            item.add_marker(pytest.mark.timeout(1500))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the result of each case that ran. The time of a case includes the shared run that it was the first to need."""
    report = yield
    spent = item.stash.get(SPENT, 0.0) + report.duration
    item.stash[SPENT] = spent
    if (report.when == "call" and report.outcome != "skipped") or (report.when == "setup" and report.failed):
        told = dict(report.user_properties).get("told", {})
        results.record(item.name, report.outcome, spent, results.release_of(release_root()), told, _last_line(report))
    return report


def _last_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message).splitlines()[0][:300] if crash else ""


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the source folder of the release."""
    return release_root()


@pytest.fixture(scope="session")
def make_bench(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Bench]]:
    """Yield a function that makes a bench with a model of its own."""

    def make(tied: bool = False, words: Sequence[str] = WORDS, width: int = 32) -> Bench:
        folder = tmp_path_factory.mktemp("nemo")
        return Bench(folder, write_model(folder / "model", width, tied, words), root, ray)

    with ray_folder() as ray:
        yield make


@pytest.fixture(scope="session")
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """Return a bench whose model has separate embedding and head, and a vocabulary that two GPUs can share."""
    return make_bench(words=EVEN)


@pytest.fixture(scope="session")
def undisturbed(bench: Bench) -> Run:
    """Return a finished run of full weights on one rank, with which others are compared."""
    return bench.job(steps=6, save_every=3).done()


@pytest.fixture(scope="session")
def adapters(make_bench: Callable[..., Bench]) -> Callable[[bool], Run]:
    """Return a function that finds the finished run of an adapter; the first call trains it. `tied`: the head is the embedding."""
    known: dict[bool, Run] = {}

    def find(tied: bool) -> Run:
        if tied not in known:
            known[tied] = make_bench(tied=tied).job(**ADAPTER).done()
        return known[tied]

    return find


@pytest.fixture
def told(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the key figures of the case, which the result file keeps."""
    figures: dict[str, Any] = {}
    request.node.user_properties.append(("told", figures))
    return figures
