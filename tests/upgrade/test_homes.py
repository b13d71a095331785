"""Tests that the home of each released version is recorded, so that the tests of upgrades open it."""

from __future__ import annotations

import re

import pytest

from tests.upgrade.record_homes import ROOT, releases

_RELEASED = re.compile(r"^## (\d+\.\d+\.\d+) \(\d{4}-\d{2}-\d{2}\)$", re.MULTILINE)


def released(changelog: str) -> list[str]:
    """Return the versions of a changelog that have a date. A version without one is not released."""
    return _RELEASED.findall(changelog)


def test_each_released_version_has_a_recorded_home() -> None:
    missing = set(released((ROOT / "CHANGELOG.md").read_text())) - set(releases())
    assert not missing, f"record them with `python -m tests.upgrade.record_homes v{min(missing)}`, and commit the archives"


@pytest.mark.parametrize(
    ("heading", "found"), [("## 0.1.0 (2026-12-01)", ["0.1.0"]), ("## 0.1.0 (unreleased)", []), ("### 0.1.0 (2026-12-01)", [])]
)
def test_a_version_with_a_date_is_released(heading: str, found: list[str]) -> None:
    assert released(f"# Changelog\n\n{heading}\n\ntext\n") == found
