"""Follows the pages on sources: writes their files and runs their commands, in a new folder. The lines that they show must appear.

`tests/e2e/test_quickstart.py` follows the other pages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.docs.walk import FOLLOWED, NEW_FOLDER, ROOT, begin, blocks, flaws, runs
from tests.e2e.terminals import processes_of, reading
from tests.s3 import S3, served_by_default
from tests.unit.materializer.receive.langfuse.api_server import KEYS, langfuse_server
from tests.warm import Warm

pytestmark = pytest.mark.slow
KEPT = {
    "connect-langfuse.md": (1, 1, {"not_a_generation": 1}),
    "connect-litellm.md": (1, 0, {"cache_hit": 1}),
    "read-collector-files.md": (1, 0, {}),
    "read-tables.md": (3, 2, {}),
}
"""Page -> (traces, feedback, reasons for traces) that its source gives."""


def test_all_pages_that_begin_in_a_new_folder_are_followed_here() -> None:
    found = {page.name for page in FOLLOWED if runs(page) and begin(page) == NEW_FOLDER}
    assert found == {*KEPT, "own-traces.md", "read-the-lake.md"}


@pytest.mark.parametrize("page", list(KEPT))
def test_a_page_can_be_followed(page: str, tmp_path: Path, commands: Warm) -> None:
    path, folder = ROOT / "docs" / "howto" / page, tmp_path / "reader"
    assert flaws(path) == []
    folder.mkdir()
    with reading(folder, tmp_path, commands) as reader:
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


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    with served_by_default(monkeypatch) as server:
        yield server


def test_the_page_on_litellm_works_with_a_bucket(s3: S3, tmp_path: Path, commands: Warm) -> None:
    for block in blocks(ROOT / "docs" / "howto" / "connect-litellm.md"):
        if block.file == "loop.toml":
            assert 'path = "logs" ' in block.text
            (tmp_path / "loop.toml").write_text(block.text.replace('path = "logs" ', f'path = "s3://{s3.bucket}/logs" '))
        elif block.file is not None:
            s3.client.put_object(Bucket=s3.bucket, Key=block.file, Body=block.text.encode())
    with reading(tmp_path, tmp_path, commands) as reader:
        report = json.loads(reader.ratchet("ingest", "loop.toml", "--json"))
    assert (report["kept"], report["reasons"]) == (1, {"cache_hit": 1})


def test_the_settings_of_the_api_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: Warm) -> None:
    [block] = [one for one in blocks(ROOT / "docs" / "howto" / "connect-langfuse.md") if "base_url" in one.text]
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", KEYS[0])
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", KEYS[1])
    head = '[line]\nname = "support"\nserved_model = "m"\n\n[[rewards]]\nname = "user_feedback"\n\n'
    with langfuse_server() as server, reading(tmp_path, tmp_path, commands) as reader:
        start = (datetime.now(UTC) - timedelta(hours=2)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        call = {"id": "o", "traceId": "t", "type": "GENERATION", "startTime": start, "input": "question", "output": "answer"}
        call["metadata"] = {"consent": "true"}
        about = {"kind": "trace", "id": "t"}
        later = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        server.observations = [call]
        server.scores = [{"id": "c", "name": "user-feedback", "dataType": "BOOLEAN", "value": True, "timestamp": later, "subject": about}]
        assert "https://cloud.langfuse.com" in block.text
        (tmp_path / "loop.toml").write_text(head + block.text.replace("https://cloud.langfuse.com", server.url))
        report = json.loads(reader.ratchet("ingest", "loop.toml", "--json"))
    assert (report["kept"], report["feedback"]["kept"]) == (1, 1)


def test_the_page_on_own_traces_can_be_followed(tmp_path: Path, commands: Warm) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    with reading(folder, tmp_path, commands) as reader:
        reader.follow(blocks(ROOT / "docs" / "howto" / "own-traces.md"), 300)
    assert processes_of(folder) == []


def test_the_lake_is_read_with_polars_and_duckdb(tmp_path: Path, commands: Warm) -> None:
    path, folder = ROOT / "docs" / "howto" / "read-the-lake.md", tmp_path / "reader"
    assert flaws(path) == []
    folder.mkdir()
    with reading(folder, tmp_path, commands) as reader:
        reader.follow(blocks(path), 120)
        shown = reader.text()
    assert "[(datetime.date(2026, 11, 18), 2), (datetime.date(2026, 11, 19), 1)]" in shown
    assert "[('kubectl get pods -A', 1.0), ('kubectl remove job report', 0.0)]" in shown
