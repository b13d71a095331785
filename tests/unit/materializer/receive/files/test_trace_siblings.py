"""A file with traces of Langfuse beside its observations: the refusal of a trace counts for its observations, also if it comes later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.loop import SourceSettings
from ratchet.materializer.dialects.langfuse import is_trace
from ratchet.materializer.receive.files.source import open_files
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.receive.kinds import ingested, opened


def observation(identity: str, trace: str) -> dict[str, Any]:
    """An observation as Langfuse's API gives it, without a statement about consent."""
    texts = {"input": [{"role": "user", "content": "q"}], "output": {"role": "assistant", "content": "a"}}
    return {"id": identity, "traceId": trace, "type": "GENERATION", "startTime": "2026-10-18T00:10:00Z", "metadata": {}} | texts


def trace(identity: str, consent: Any) -> dict[str, Any]:
    """A trace as Langfuse's API gives it."""
    about = {"sessionId": "s", "userId": "u", "tags": [], "public": False, "htmlPath": "/project/p/traces/t", "observations": ["o"]}
    return {"id": identity, "timestamp": "2026-10-18T00:09:59Z", "metadata": {"consent": consent}, "input": "q", "output": "a"} | about


def write(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    """Write rows as JSON Lines."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("names", [("observations.jsonl", "traces.jsonl"), ("b.jsonl", "a.jsonl")])
def test_the_refusal_of_a_trace_in_a_file_beside_counts_for_its_observations(names: tuple[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder, names[0], observation("1", "kept"), observation("2", "refused"), observation("3", "refused"))
    write(folder, names[1], trace("kept", None), trace("refused", False))
    write(folder / "elsewhere", "traces.jsonl", trace("kept", False))
    found = ingested(opened("jsonl", folder, tmp_path / "state"))
    assert {row["id"]: row["messages"] is not None for row in found.traces} == {"1": True, "2": False, "3": False}
    assert found.skipped["traces"] == {"not_a_generation": 3}
    assert not found.bad


def test_a_refusal_that_comes_later_is_applied_to_what_is_stored(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    settings = SourceSettings(name="app", kind="jsonl", path=str(folder))
    datasets = make_datasets(tmp_path, make_loop(sources=[settings.model_dump()], governance={"consent": "assumed"}))
    write(folder, "observations.jsonl", observation("1", "t"), observation("2", "other"))
    for batch in open_files(settings, tmp_path, tmp_path / "state").batches():
        datasets.ingest(batch)
    assert datasets.lake.scan("consent").height == 0
    write(folder, "traces.jsonl", trace("t", False), trace("other", True))
    for batch in open_files(settings, tmp_path, tmp_path / "state").batches():
        report = datasets.ingest(batch)
        assert report.traces.adds_up
    assert datasets.lake.scan("consent").select("id", "given").rows() == [("1", False)]


def test_a_record_of_an_application_is_no_trace() -> None:
    assert is_trace(trace("t", True))
    assert not is_trace({"id": "1", "timestamp": 1, "userId": "u", "sessionId": "s", "tags": [], "messages": "q", "response": "a"})
    assert not is_trace({"id": "1", "timestamp": 1, "userId": "u", "question": "q"})
    assert not is_trace(observation("1", "t"))
