"""A skipped test names one of the known needs, the summary counts it, and any other reason fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import REMEDIES, Need, need_of

pytestmark = pytest.mark.slow  # each test runs pytest in a process

REPO = Path(__file__).resolve().parents[2]


def run(folder: Path, body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs one test with this body under the project's conftest, outside CI unless told otherwise."""
    lines = "\n    ".join(body.splitlines())
    (folder / "test_one.py").write_text(f"import pytest\nfrom tests.needs import Need, lacks\n\ndef test_one():\n    {lines}\n")
    given = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST_")}
    given["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # other plugins take longer to load than the test runs
    plugins = ["-p", "pytest_timeout", "-p", "tests.conftest"]
    command = [sys.executable, "-m", "pytest", *plugins, "-c", str(REPO / "pyproject.toml"), str(folder)]
    return subprocess.run(command, cwd=REPO, env={**given, **environment}, capture_output=True, text=True, check=False)


def test_a_missing_need_is_a_skip_that_the_summary_counts(tmp_path: Path) -> None:
    done = run(tmp_path, 'lacks(Need.POSTGRES, "for this test")')
    assert done.returncode == 0, done.stdout
    assert "0 passed, 0 failed, 0 errors, 1 skipped (no Postgres: 1)" in done.stdout
    assert "no Postgres: make tools" in done.stdout


def test_any_other_reason_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, 'pytest.skip("not today")')
    assert done.returncode == 1, done.stdout
    assert "reason not listed in tests/needs.py: not today" in done.stdout


@pytest.mark.parametrize(("need", "code"), [("POSTGRES", 1), ("GPU", 0)])
def test_ci_lacks_nothing_that_it_can_have(tmp_path: Path, need: str, code: int) -> None:
    done = run(tmp_path, f"lacks(Need.{need})", CI="true")
    assert done.returncode == code, done.stdout


def test_each_need_has_a_remedy_and_is_documented() -> None:
    guide = (REPO / "CONTRIBUTING.md").read_text()
    assert set(REMEDIES) == set(Need)
    assert [need for need in Need if f"| {need} |" not in guide] == []
    assert all(need_of(f"{need}: because") is need and need_of(str(need)) is need for need in Need)
    assert need_of("no Gophers") is None
