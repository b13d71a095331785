"""The committed result of the conformance suite on a real NeMo RL is about the present code, and the page shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nemo import results


def test_the_result_is_about_this_code() -> None:
    stale = {case: row["code"] for case, row in results.read().items() if row["code"] != results.code_digest()}
    assert not stale, f"{' or '.join(results.CODE)} has changed since {len(stale)} cases of {results.RESULTS.name} ran: {results.COMMAND}"


def test_every_case_has_a_result_and_passed() -> None:
    rows = results.read()
    missing = set(results.functions()) - {case.partition("[")[0] for case in rows}
    assert not missing, f"no result of {sorted(missing)}: {results.COMMAND}"
    assert {row["outcome"] for row in rows.values()} == {"passed"}


def test_the_page_shows_the_result() -> None:
    assert results.page() == results.PAGE.read_text(encoding="utf-8"), "run `python -m tests.nemo.results`"


def test_a_change_of_the_code_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in results.CODE:
        (tmp_path / folder).mkdir(parents=True)
    file = tmp_path / results.CODE[0] / "config.py"
    file.write_text("a = 1\n")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    before = results.code_digest()
    file.write_text("a = 2\n")
    assert results.code_digest() != before
