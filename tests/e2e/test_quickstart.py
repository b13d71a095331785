"""Follows the quickstart, and then each page whose commands can run here, word by word: takes the commands out of the pages and runs them.

The quickstart is followed once, with the installed command. The pages that need its result begin with a copy of its folder, at the same
path; their commands start from a process that has loaded the libraries. `tests/docs/test_source_pages.py` follows those that begin in a new
folder.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.command import ROOT
from tests.docs.walk import AFTER_QUICKSTART, FOLLOWED, NEW_FOLDER, WITH_MODEL, begin, blocks, runs
from tests.e2e.terminals import processes_of, reading, replace
from tests.needs import Need, lacks
from tests.warm import Warm

QUICKSTART = ROOT / "docs" / "quickstart.md"
SOAKED = ("add-a-candidate.md", "bypass-the-router.md", "connect-an-application.md")
"""Pages that start the whole service for what `test_given.py`, `test_bypass.py` and `test_receiver.py` test without it."""
PAGES = [
    pytest.param(page, marks=pytest.mark.soak if page.name in SOAKED else (), id=page.relative_to(ROOT).as_posix())
    for page in FOLLOWED
    if runs(page) and begin(page) != NEW_FOLDER
]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Followed:
    """The result of the quickstart."""

    loop: Path
    """Its folder. Its service is stopped."""
    saved: Path
    """A copy."""
    text: str
    """What its terminals have shown."""
    history: list[str]
    """The outcomes of the versions."""


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    folder = tmp_path_factory.mktemp("reader")
    loop, began = folder / "first-loop", time.monotonic()
    with reading(folder, folder) as reader:
        for block in blocks(QUICKSTART):
            if block.terminal == 2:
                reader.folder = loop
            reader.follow([block], 900)
        text, history = reader.text(), json.loads(reader.ratchet("history", "kubectl", "--json"))
    print(f"the quickstart took {time.monotonic() - began:.0f} s")
    shutil.copytree(loop, folder / "saved", symlinks=True)
    yield Followed(loop, folder / "saved", text, [one["outcome"] for one in history])
    shutil.rmtree(folder / "saved")


def test_the_quickstart_ends_in_a_promotion_and_a_rejection(followed: Followed) -> None:
    assert followed.history == ["adopted", "promoted", "rejected"], followed.text
    assert "kubectl/0001 ended promoted" in followed.text
    assert processes_of(followed.loop) == []


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_succeed(page: Path, followed: Followed, tmp_path: Path, commands: Warm) -> None:
    if shutil.which("curl") is None and any(line.startswith("curl ") for block in blocks(page) for line in block.commands):
        lacks(Need.CURL, "the page calls it")
    folder, began = tmp_path / "reader", time.monotonic()
    place = begin(page)
    if place == AFTER_QUICKSTART:
        folder = followed.loop
        replace(folder, followed.saved)
    elif page.name == "README.md":
        shutil.copytree(page.parent, folder)
    else:
        folder.mkdir()
    if place == WITH_MODEL:
        shutil.copytree(followed.saved / "model", folder / "model")
    with reading(folder, tmp_path, commands) as reader:
        reader.follow(blocks(page), 300)
    assert processes_of(folder) == []
    print(f"{page.name} took {time.monotonic() - began:.0f} s")
