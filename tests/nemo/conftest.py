"""The release, tiny models, and benches for the conformance suite on NeMo RL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.nemo.runs import Bench, ray_folder, release_root
from tests.unit.trainers.conftest import WORDS, write_model

EVEN = (*WORDS, "extra")
"""A vocabulary of 20 words, which two GPUs can share."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the suite as soak: only `make nemo` runs it."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.soak)
            item.add_marker(pytest.mark.timeout(1500))


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the source folder of the release."""
    return release_root()


@pytest.fixture(scope="session")
def make_bench(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Bench]]:
    """Yield a function that makes a bench with a model of its own."""

    def make(tied: bool = False, words: Sequence[str] = WORDS) -> Bench:
        folder = tmp_path_factory.mktemp("nemo")
        return Bench(folder, write_model(folder / "model", tied=tied, words=words), root, ray)

    with ray_folder() as ray:
        yield make


@pytest.fixture(scope="session")
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """Return a bench whose model has separate embedding and head, and a vocabulary that two GPUs can share."""
    return make_bench(words=EVEN)


@pytest.fixture
def told(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the key figures of the case, which the result file keeps."""
    figures: dict[str, Any] = {}
    request.node.user_properties.append(("told", figures))
    return figures
