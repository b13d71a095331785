"""The distribution of tests over pytest-xdist workers, and the installed example package.

All cluster tests run in one worker, because two test clusters at once on two cores would break the time limits of the gangs. They wait
more than they compute, and many others wait for servers, so `make test` has four workers for two cores. Every other test file goes to
the next free worker as a whole. The cluster comes first, then the files with slow tests, so that the workers finish at about the same
time.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests import command, progress, toy_line
from tests.example_plugin import build, on_path
from tests.needs import REMEDIES, Need, need_of
from tests.property_examples import EXPLORES
from tests.soak_results import record
from tests.warm import COMMAND, Warm

CLUSTER = "tests/cluster/"
LONGEST = 40
"""Number of files whose time is printed, if they took a minute or longer."""
BESIDE = pytest.StashKey[bool]()
"""Whether the tests of this run include the cluster tests."""

# No deadline: other workers may take the core in the middle of an example. The same examples in each run: a test that passed once passes
# again on the same code. `make soak` tries new ones.
settings.register_profile("shared-cores", deadline=None, derandomize=not EXPLORES)
settings.load_profile("shared-cores")
# Each client of httpx loads the certificates for https, which takes 36 ms of CPU, and tests make a client per request.
httpx._transports.default.create_ssl_context = cache(httpx._transports.default.create_ssl_context)  # type: ignore[attr-defined]
gc.disable()  # until the tests are collected: the imports create a million permanent objects, and each collection would visit them again


@pytest.hookimpl(trylast=True)  # the reporter exists only now
def pytest_configure(config: pytest.Config) -> None:
    """Print failures as they happen."""
    progress.installed(config)


class Dealt(LoadScopeScheduling):
    """Assigns whole test files, and all cluster tests together, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return CLUSTER if nodeid.startswith(CLUSTER) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Dealt:
    """Return the scheduler that pytest-xdist uses."""
    return Dealt(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Move the cluster tests and then the files with slow tests to the front, if pytest-xdist workers run the tests."""
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: (not item.nodeid.startswith(CLUSTER), item.path not in slow))
        config.stash[BESIDE] = items[0].nodeid.startswith(CLUSTER) if items else False


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Lower the priority of the workers beside that of the cluster, whose gangs have time limits and which needs the longest time."""
    if item.config.stash.get(BESIDE, False) and not item.nodeid.startswith(CLUSTER):
        item.config.stash[BESIDE] = False
        os.nice(5)


def pytest_collection_finish() -> None:
    """Collect garbage again from now on, except the objects of the imported modules."""
    gc.freeze()
    gc.enable()


def _skips(config: pytest.Config) -> list[str]:
    """The reasons of the tests that were skipped, one entry per test."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    reasons = [report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr for report in reports]
    return [str(reason).removeprefix("Skipped: ") for reason in reasons]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the run when a test skipped for a reason that `tests/needs.py` does not list."""
    if session.exitstatus == pytest.ExitCode.OK and any(need_of(reason) is None for reason in _skips(session.config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Prints how many tests passed, failed and were skipped, why, and how to run the skipped ones. Keeps results of soak tests."""
    counts = {kind: len(terminalreporter.stats.get(kind, [])) for kind in ("passed", "failed", "error", "skipped")}
    needs = Counter(need_of(reason) or f"reason not listed in tests/needs.py: {reason}" for reason in _skips(config))
    why = f" ({', '.join(f'{need}: {count}' for need, count in needs.most_common())})" if needs else ""
    terminalreporter.section("summary")
    for need in needs:
        terminalreporter.write_line(f"{need}: {REMEDIES[need]}" if isinstance(need, Need) else f"ERROR: {need}")
    seconds = Counter[str]()
    for report in (report for reports in terminalreporter.stats.values() for report in reports if hasattr(report, "duration")):
        seconds[report.nodeid.partition("::")[0]] += report.duration
    if config.option.markexpr == "soak" and not hasattr(config, "workerinput"):
        for report in (*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())):
            record(report.nodeid, {"outcome": report.outcome, "seconds": round(report.duration)})
    longest = [(file, spent) for file, spent in seconds.most_common(LONGEST) if spent >= 60]
    if longest:
        terminalreporter.write_line(f"files that took longest, of {sum(seconds.values()) / 60:.0f} minutes over all workers:")
    for file, spent in longest:
        terminalreporter.write_line(f"  {spent / 60:5.1f} min  {file}")
    passed, failed, errors, skipped = counts.values()
    terminalreporter.write_line(f"{passed} passed, {failed} failed, {errors} errors, {skipped} skipped{why}")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A running S3 server with a new bucket (`tests.s3.S3`)."""
    from tests.s3 import served  # imported late: most tests need no server, and moto takes a second

    with served(monkeypatch) as server:
        yield server


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A new folder with nothing beside it: a command looks for other installations beside its folder, and must not find other tests'."""
    path = tmp_path / "t"
    path.mkdir()
    return path


@pytest.fixture(scope="session")
def example_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site folder with the unpacked wheel of the example package. It is not on the path."""
    return build(tmp_path_factory.mktemp("example"))


@pytest.fixture(scope="session", autouse=True)
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """A process from which `ratchet` commands start with loaded libraries. The first command starts it."""
    command.WARM = Warm(tmp_path_factory.mktemp("c"), COMMAND)
    toy_line.MODELS = tmp_path_factory.getbasetemp().parent / "toy-models" if "PYTEST_XDIST_WORKER" in os.environ else None
    yield command.WARM
    command.WARM.stop()
    command.WARM = None


@pytest.fixture
def example(example_wheel: Path) -> Iterator[Path]:
    """The example package, importable during the test."""
    with on_path(example_wheel):
        yield example_wheel
