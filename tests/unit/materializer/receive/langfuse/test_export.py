"""Tests of Langfuse's blob export: both layouts, all file types, traces and scores that arrive late, and runs that are not complete."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.contracts.errors import ConfigError
from tests.needs import shared_data
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.receive.kinds import ingested, opened, reasons

FIRST, SECOND, THIRD = "2026-11-18T00-00-00", "2026-11-18T01-00-00", "2026-11-18T02-00-00"


def generation(identity: str, trace: str = "t", hour: int = 0, **more: Any) -> dict[str, Any]:
    """A row of an observation."""
    return {
        "id": identity,
        "trace_id": trace,
        "type": "GENERATION",
        "start_time": f"2026-11-18 0{hour}:10:00.000",
        "end_time": f"2026-11-18 0{hour}:10:01.500",
        "input": json.dumps([{"role": "user", "content": f"question {identity}"}]),
        "output": json.dumps({"role": "assistant", "content": f"answer {identity}"}),
        "metadata": {},
        "provided_model_name": "m",
        "model_parameters": "{}",
        "usage_details": {"input": 3, "output": 4},
        "level": "DEFAULT",
    } | more


def score(identity: str, value: Any = 1, **more: Any) -> dict[str, Any]:
    """A row of a score on the trace `t`."""
    return {
        "id": identity,
        "timestamp": "2026-11-18 00:30:00.000",
        "trace_id": "t",
        "observation_id": None,
        "name": "user-feedback",
        "value": value,
        "data_type": "NUMERIC",
        "string_value": None,
        "comment": "call me at home",
    } | more


def trace(identity: str = "t", **more: Any) -> dict[str, Any]:
    """A row of a trace."""
    return {
        "id": identity,
        "timestamp": "2026-11-18 00:09:59.000",
        "user_id": "u1",
        "session_id": "s1",
        "metadata": {},
        "tags": ["a"],
    } | more


def lines(rows: list[dict[str, Any]]) -> bytes:
    """Rows as JSON Lines."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    """Rows as Langfuse writes CSV: every field in quotes, objects as JSON."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), quoting=csv.QUOTE_ALL)
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {key: json.dumps(value) if isinstance(value, dict) else "" if value is None else value for key, value in row.items()}
        )
    return file.getvalue().encode()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    """Rows as Parquet."""
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([{key: value for key, value in row.items() if value != {}} for row in rows]), file)
    return file.getvalue()


FILES: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "jsonl": lines,
    "jsonl.gz": lambda rows: gzip.compress(lines(rows)),
    "json": lambda rows: json.dumps(rows, indent=1).encode(),
    "csv": as_csv,
    "csv.gz": lambda rows: gzip.compress(as_csv(rows)),
    "parquet": as_parquet,
}


def write(root: Path, table: str, window: str, rows: list[dict[str, Any]], ending: str = "jsonl") -> None:
    """A file of the export."""
    path = root / "prefix" / "project" / table / f"{window}.{ending}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(FILES[ending](rows))


@pytest.mark.parametrize("ending", list(FILES))
@pytest.mark.parametrize("table", ["observations_v2", "observations"])
def test_both_layouts_are_read_in_all_file_types(table: str, ending: str, tmp_path: Path) -> None:
    export = tmp_path / "export"
    own = {"user_id": "u1", "session_id": "s1"} if table == "observations_v2" else {}
    write(export, table, FIRST, [generation("o", **own), generation("agent", type="AGENT", **own)], ending)
    write(export, "scores", FIRST, [score("r")], ending)
    if table == "observations":
        write(export, "traces", FIRST, [trace()], ending)
    found = ingested(opened("langfuse", export, tmp_path / "state"))
    [row] = found.traces
    assert (row["id"], row["user"], row["session"], row["answer"], row["model"]) == ("o", "u1", "s1", "answer o", "m")
    assert (row["latency_ms"], row["input_tokens"], row["output_tokens"]) == (1500.0, 3, 4)
    assert [(one["trace_id"], one["kind"], one["value"]) for one in found.feedback] == [("o", "rating", 1.0)]
    assert found.skipped["traces"] == {"not_a_generation": 1}
    assert found.bad == []


def test_a_trace_gives_user_and_metadata_and_its_refusal_counts(tmp_path: Path) -> None:
    export = tmp_path / "export"
    write(export, "traces", FIRST, [trace(metadata={"consent": "true", "region": "eu"}), trace("no", metadata={"consent": False})])
    rows = [generation("o", metadata={"region": "us"}), generation("p", trace="no", metadata={"consent": True})]
    write(export, "observations", SECOND, rows)  # the trace lies in the file of an earlier window
    write(export, "traces", SECOND, [trace("other")])
    first, second = ingested(opened("langfuse", export, tmp_path / "state"), assumed=False).traces
    assert (first["consent"], first["region"], first["user"], first["answer"]) == (True, "us", "u1", "answer o")
    assert (second["consent"], second["answer"]) == (False, None)


def test_an_observation_without_its_trace_is_quarantined(tmp_path: Path) -> None:
    write(tmp_path / "export", "traces", FIRST, [trace("other")])
    write(tmp_path / "export", "observations", FIRST, [generation("o")])
    found = ingested(opened("langfuse", tmp_path / "export", tmp_path / "state"))
    assert (found.traces, reasons(found)) == ([], {"missing_trace": 1})
    write(tmp_path / "export", "traces", FIRST, [trace("other"), trace()])
    later = ingested(opened("langfuse", tmp_path / "export", tmp_path / "state"))
    assert [row["user"] for row in later.traces] == ["u1"]


def test_a_score_on_a_trace_is_about_the_last_generation_before_it(tmp_path: Path) -> None:
    export = tmp_path / "export"
    rows = [
        generation("plan"),
        generation("answer", start_time="2026-11-18 00:20:00.000"),
        generation("later", start_time="2026-11-18 00:40:00.000"),
    ]
    write(export, "observations_v2", FIRST, rows)
    write(export, "scores", FIRST, [score("r"), score("own", observation_id="plan"), score("session", trace_id=None, session_id="s")])
    found = ingested(opened("langfuse", export, tmp_path / "state"))
    assert sorted(one["trace_id"] for one in found.feedback) == ["answer", "plan"]
    assert found.skipped["feedback"] == {"not_about_a_call": 1}


def test_a_score_that_arrives_first_is_read_when_its_generation_is_there(tmp_path: Path) -> None:
    export, state = tmp_path / "export", tmp_path / "state"
    write(export, "scores", FIRST, [score("r")])
    found = ingested(opened("langfuse", export, state))
    assert (found.feedback, found.skipped["feedback"]) == ([], {"score_without_generation": 1})
    assert ingested(opened("langfuse", export, state)).skipped["feedback"] == {}  # not read again for nothing
    write(export, "observations_v2", FIRST, [generation("o")])
    later = ingested(opened("langfuse", export, state))
    later.merge(ingested(opened("langfuse", export, state)), "")
    assert [one["trace_id"] for one in later.feedback] == ["o"]


def test_scores_mean_what_the_loop_file_says(tmp_path: Path) -> None:
    export = tmp_path / "export"
    write(export, "observations_v2", FIRST, [generation("o")])
    mood = {"name": "mood", "data_type": "CATEGORICAL"}
    rows = [
        score("1", 4, name="stars"),
        score("2", 9, name="stars"),
        score("3", None, **mood, string_value="happy"),
        score("4", None, **mood, string_value="sad"),
        score("5", None, **mood, string_value="?"),
        score("6", True, name="ok", data_type="BOOLEAN"),
        score("7", 0.3, name="judge", source="EVAL"),
        score("8", None, name="output", data_type="CORRECTION", string_value="a better answer"),
    ]
    write(export, "scores", FIRST, rows)
    meanings = {"stars": {"min": 1, "max": 5}, "mood": {"good": ["happy"], "bad": ["sad"]}, "ok": {}}
    found = ingested(opened("langfuse", export, tmp_path / "state", scores=meanings))
    assert [(one["kind"], one["value"], one["text"]) for one in found.feedback] == [
        ("rating", 0.75, None),
        ("rating", 1.0, None),
        ("rating", 0.0, None),
        ("rating", 1.0, None),
        ("correction", None, "a better answer"),
    ]
    assert found.skipped["feedback"] == {"other_category": 1, "other_score": 1}
    assert reasons(found) == {"bad_value": 1}
    assert "home" not in json.dumps(found.feedback)


def test_stars_without_a_stated_scale_are_no_ratings(tmp_path: Path) -> None:
    export = tmp_path / "export"
    write(export, "observations_v2", FIRST, [generation("o")])
    write(export, "scores", FIRST, [score(str(stars), stars, name="user-feedback") for stars in (1, 2, 3, 5)])
    found = ingested(opened("langfuse", export, tmp_path / "state"))
    assert (found.feedback, reasons(found)) == ([], {"rating_scale": 4})
    found = ingested(opened("langfuse", export, tmp_path / "other", scores={"user-feedback": {"min": 1, "max": 5}}))
    assert [one["value"] for one in found.feedback] == [0, 0.25, 0.5, 1]
    scaled = [score("b", False, name="ok", data_type="BOOLEAN"), score("s", 2, name="stars")]
    write(export, "scores", SECOND, scaled)
    meanings = {"user-feedback": {}, "ok": {}, "stars": {"min": 1, "max": 5}}
    found = ingested(opened("langfuse", export, tmp_path / "third", scores=meanings))
    assert [one["value"] for one in found.feedback] == [0, 0.25], "scores with a scale of their own are kept"
    assert reasons(found) == {"rating_scale": 4}


def test_a_score_that_the_loop_file_calls_a_signal_is_no_rating(tmp_path: Path) -> None:
    export = tmp_path / "export"
    write(export, "observations_v2", FIRST, [generation("o")])
    action = {"name": "action", "data_type": "CATEGORICAL"}
    rows = [
        score("1", 1, name="copied"),
        score("2", 0, name="copied"),
        score("3", True, name="redo", data_type="BOOLEAN"),
        score("4", False, name="redo", data_type="BOOLEAN"),
        score("5", None, **action, string_value="left"),
        score("6", None, **action, string_value="stayed"),
        score("7", "perhaps", name="copied"),
        score("8", 1),
    ]
    write(export, "scores", FIRST, rows)
    meanings = {"copied": {"signal": "copied"}, "redo": {"signal": "regenerated"}}
    meanings |= {"action": {"signal": "abandoned", "happened": ["left"]}, "user-feedback": {}}
    found = ingested(opened("langfuse", export, tmp_path / "state", scores=meanings))
    assert [(one["kind"], one["signal"], one["value"], one["trace_id"]) for one in found.feedback] == [
        ("signal", "copied", None, "o"),
        ("signal", "regenerated", None, "o"),
        ("signal", "abandoned", None, "o"),
        ("rating", None, 1.0, "o"),
    ]
    assert found.skipped["feedback"] == {"absent_signal": 3}
    assert reasons(found) == {"bad_value": 1}


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"a": {"signal": "copied", "max": 5}}, "no scale"),
        ({"a": {"signal": "session.thanked"}}, "must be one of"),
        ({"a": {"happened": ["x"]}}, "needs a"),
        ({"a": {"min": 1, "max": 1}}, "must differ"),
        ({"a": {"good": ["x"], "bad": ["x"]}}, "either"),
        ({"a": {"scale": 5}}, "scale"),
    ],
)
def test_a_wrong_meaning_is_refused(scores: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        opened("langfuse", tmp_path, tmp_path, scores=scores)


def test_a_window_is_read_when_its_manifest_is_there(tmp_path: Path) -> None:
    export, state = tmp_path / "export", tmp_path / "state"
    manifests = export / "prefix" / "project" / "manifests"
    manifests.mkdir(parents=True)
    for window in (FIRST, SECOND, THIRD):
        write(export, "observations_v2", window, [generation(window, trace=window)])
    (manifests / f"{FIRST}.json").write_text(json.dumps({"files": [{"table": "observations_v2", "rowCount": 2}]}))
    (manifests / f"{THIRD}.json").write_text('{"files": [')
    source = opened("langfuse", export, state)
    found = ingested(source)
    assert [row["id"] for row in found.traces] == [FIRST]
    assert reasons(found) == {"count_mismatch": 1}
    assert [file.why for file in source.unread] == [
        "the export has not written the manifest of this window yet",
        "the manifest of this window is damaged",
    ]
    for window in (SECOND, THIRD):
        (manifests / f"{window}.json").write_text(json.dumps({"files": [{"table": "observations_v2", "rowCount": 1}]}))
    assert [row["id"] for row in ingested(source).traces] == [SECOND, THIRD]


def test_a_file_that_has_grown_is_read_again_and_others_are_not(tmp_path: Path) -> None:
    export, state = tmp_path / "export", tmp_path / "state"
    write(export, "observations_v2", FIRST, [generation("a")])
    write(export, "observations_v2", SECOND, [generation("b")])
    assert len(ingested(opened("langfuse", export, state)).traces) == 2
    write(export, "observations_v2", SECOND, [generation("b"), generation("c")])
    assert [row["id"] for row in ingested(opened("langfuse", export, state)).traces] == ["b", "c"]


@pytest.mark.parametrize(
    ("of_trace", "own"),
    [
        ({"privacy": {"consent": False}}, {"privacy": {"x": 1}}),
        ({"user_consent": False}, {"user_consent": True}),
        ({"Consent": False}, {"Consent": True}),
        ({"consent": False}, {"consent": True}),
        ({"a": json.dumps({"consent": "no"})}, {"a": "b"}),
    ],
)
def test_a_refusal_in_the_metadata_of_the_trace_is_not_hidden_by_the_observation(of_trace: Any, own: Any, tmp_path: Path) -> None:
    write(tmp_path / "export", "observations", FIRST, [generation("a", metadata=own)])
    write(tmp_path / "export", "traces", FIRST, [trace(metadata=of_trace)])
    [row] = ingested(opened("langfuse", tmp_path / "export", tmp_path / "state")).traces
    assert (row["messages"], row["answer"], row["consent"]) == (None, None, False)


@pytest.mark.slow
def test_of_an_observation_that_is_exported_again_the_first_version_stays(tmp_path: Path) -> None:
    export = tmp_path / "export"
    settings = {"name": "s", "kind": "langfuse", "path": str(export)}
    datasets = make_datasets(tmp_path, make_loop(sources=[settings], governance={"consent": "assumed"}))
    times = {"start_time": "2026-10-18 00:10:00.000", "end_time": "2026-10-18 00:10:01.000"}
    write(export, "observations_v2", FIRST, [generation("o", **times), generation("p", **times)])
    changed = generation("o", **times, updated_at="2026-10-18 03:00:00.000") | {"output": "a late update"}
    write(export, "observations_v2", SECOND, [changed, generation("p", **times)])
    reports = [datasets.ingest(one).traces for one in opened("langfuse", export, tmp_path / "state").batches()]
    assert [(one.kept, one.duplicate, one.reasons) for one in reports] == [(2, 0, {}), (0, 1, {"later_version": 1})]
    assert sorted(datasets.lake.scan("traces")["answer"].to_list()) == ["answer o", "answer p"]


def test_files_outside_of_the_layout_are_named(tmp_path: Path) -> None:
    write(tmp_path / "export", "observations_v2", FIRST, [generation("a")])
    (tmp_path / "export" / "notes.txt").write_text("hello")
    source = opened("langfuse", tmp_path / "export", tmp_path / "state")
    ingested(source)
    assert [file.name for file in source.unread] == ["notes.txt"]
    assert source.look(10) == (1, source.unread)


@pytest.mark.shared
@pytest.mark.slow
def test_the_shared_export_gives_the_published_counts(tmp_path: Path) -> None:
    folder = shared_data("gsm8k_traces")
    expected = json.loads((folder / "expected.json").read_text())["formats"]["langfuse"]
    found = ingested(opened("langfuse", folder / "langfuse", tmp_path))
    assert len({row["id"] for row in found.traces}) == expected["traces"]
    assert len({row["id"] for row in found.traces if row["consent"]}) == expected["with_consent"]
    assert len(found.feedback) == expected["with_feedback"]
    assert {row["value"] for row in found.feedback} == {0.0, 1.0}
    assert sum(row["value"] == 1.0 for row in found.feedback) == expected["feedback_positive"]
    assert len({row["user"] for row in found.traces}) == expected["users"]
    assert found.bad == []


def test_rows_that_nest_too_deeply_or_name_no_trace_cost_only_themselves(tmp_path: Path) -> None:
    deep: Any = json.loads("[" * 300 + "]" * 300)
    write(tmp_path / "export", "traces", FIRST, [trace()])
    (tmp_path / "export/prefix/project/observations").mkdir()
    rows = [generation("list", trace_id=["t"]), generation("good")]
    nested = json.dumps(generation("deep", input="x")).replace('"x"', json.dumps(deep))
    content = nested.encode() + b"\n" + lines(rows)
    (tmp_path / f"export/prefix/project/observations/{FIRST}.jsonl").write_bytes(content)
    found = ingested(opened("langfuse", tmp_path / "export", tmp_path / "state"))
    assert [row["id"] for row in found.traces] == ["good"]
    assert reasons(found) in [{reason: 1, "missing_trace": 1} for reason in ("too_deep", "malformed_json")]  # by the version of the parser
