"""Tests of what `ratchet check` says about a teacher. Nothing is sent."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from ratchet.contracts.fakes import FakeTeacher
from ratchet.contracts.loop import PrivacySettings, TeacherSettings
from ratchet.flows.cli.setup.teacher_check import teacher
from tests.builders import teacher_section
from tests.simulation.simulated_line import Scenario, SimulatedLine


def checked(privacy: PrivacySettings | None = None, **changes: Any) -> dict[str, list[str]]:
    """Return the findings by level."""
    context = SimulatedLine(Scenario(seed=1)).context
    asked = FakeTeacher(lambda _: "no")
    settings = {"teacher": TeacherSettings(**teacher_section(**changes)), "privacy": privacy or PrivacySettings()}
    found: dict[str, list[str]] = {}
    for level, _, text in teacher(replace(context, loop=context.loop.model_copy(update=settings), teacher=asked)):
        found.setdefault(level, []).append(text)
    assert asked.asked == []
    return found


def test_a_line_without_a_teacher_has_no_findings() -> None:
    assert teacher(SimulatedLine(Scenario(seed=1)).context) == []


def test_terms_region_and_what_is_left_of_the_budgets_are_told() -> None:
    found = checked(terms=teacher_section()["terms"] | {"accepted_on": date(2025, 12, 1)})
    assert "big in eu" in found["ok"][0]
    assert "terms accepted by Ada" in found["ok"][0]
    assert "at most 100 requests and 1 USD are left of 30 days" in found["note"][0]
    assert "error" not in found


def test_what_is_doubtful_is_a_warning_and_terms_of_tomorrow_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEACHER_KEY", raising=False)
    found = checked(PrivacySettings(mask=("email",)), key_env="TEACHER_KEY", consent="obtained", measure=0)
    told = " ".join(found["warning"])
    for part in ("TEACHER_KEY with the API key is not set", "obtained elsewhere", "personal data of the kinds card", "no answer can count"):
        assert part in told
    assert "is in the future" in found["error"][0]
