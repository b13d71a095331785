"""Follows the pages on sources: writes their files and runs their commands, in a new folder. The lines that they show must appear.

`tests/e2e/test_quickstart.py` follows all pages. This test needs no quickstart.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.docs.walk import ROOT, blocks, flaws
from tests.e2e.terminals import reading

pytestmark = pytest.mark.slow
KEPT = {
    "connect-langfuse.md": (1, 1, {"not_a_generation": 1}),
    "connect-litellm.md": (1, 0, {"cache_hit": 1}),
    "read-collector-files.md": (1, 0, {}),
    "read-tables.md": (3, 2, {}),
}
"""Page -> (traces, feedback, reasons for traces) that its source gives."""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("page", list(KEPT))
def test_a_page_can_be_followed(page: str, tmp_path: Path) -> None:
    path, folder = ROOT / "docs" / "howto" / page, tmp_path / "reader"
    assert flaws(path) == []
    folder.mkdir()
    with reading(folder, tmp_path) as reader:
        reader.follow(blocks(path), 120)
        report = json.loads(reader.ratchet("ingest", "loop.toml", "--json"))
        traces, feedback, reasons = KEPT[page]
        known = (report["kept"], report["duplicate"], report["feedback"]["kept"], report["feedback"]["duplicate"])
        again = page in ("connect-langfuse.md", "connect-litellm.md")  # their unchanged files are not read again
        assert known == ((0, 0, 0, 0) if again else (0, traces, 0, feedback))
        assert again or report["reasons"] == reasons
        shown = reader.text()
        assert "[[sources]]" in shown
        assert all(reason in shown for reason in reasons)
