"""End-to-end tests of the command line: real processes with a new home folder, messages and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import command
from tests.builders import JSONL_RECORD
from tests.needs import shared_data

pytestmark = pytest.mark.slow


@pytest.fixture
def ratchet(tmp_path: Path):
    """Return a function that runs `ratchet` in an empty folder and asserts the exit code."""

    def run(*args: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = command.ratchet(*args, home=tmp_path / "home", cwd=tmp_path, timeout=300)
        assert done.returncode == code, f"{args}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture
def gsm8k() -> Path:
    return shared_data("gsm8k_traces")


def loop_file(path: Path, source: str, **more: str) -> Path:
    """Write a loop file with this source and these extra sections, and return its path."""
    extra = "\n".join(more.values())
    path.write_text(
        f'[line]\nname = "t"\nserved_model = "t"\n[[sources]]\nname = "s"\n{source}\n[[rewards]]\nname = "final_number"\n'
        f'[[rewards]]\nname = "user_feedback"\n{extra}\n'
    )
    return path


def test_from_init_to_status(ratchet, tmp_path: Path) -> None:
    assert "wrote loop.toml" in ratchet("init", "loop.toml", "--line", "support").stderr
    assert "already exists" in ratchet("init", "loop.toml", code=2).stderr
    findings = json.loads(ratchet("check", "loop.toml", "--json").stdout)
    assert findings["ok"]
    assert any("a margin of 0.05 needs about" in f["text"] for f in findings["findings"])
    assert "no line" in ratchet("status").stderr
    assert json.loads(ratchet("status", "--json").stdout) == []
    assert "has no *.safetensors" in ratchet("adopt", "loop.toml", tmp_path, code=1).stderr
    assert "is not a folder" in ratchet("adopt", "loop.toml", "nowhere", code=1).stderr
    assert "ratchet adopt" in ratchet("run", "loop.toml", code=2).stderr


def test_errors_name_the_nearest_known_word(ratchet, tmp_path: Path) -> None:
    path = loop_file(tmp_path / "l.toml", 'kind = "receiver"', wrong="[gaet]\nlevel = 0.9")
    said = ratchet("check", path, code=2).stderr
    assert "l.toml" in said
    assert "unknown key 'gaet'; did you mean 'gate'?" in said
    assert "did you mean 'status'" in ratchet("statsu", code=2).stderr
    assert "there is no loop file" in ratchet("check", "missing.toml", code=2).stderr
    assert "no reward" in ratchet("check", bad_reward(tmp_path), code=2).stderr
    only = loop_file(tmp_path / "o.toml", 'kind = "receiver"')
    only.write_text(only.read_text().replace('[[rewards]]\nname = "final_number"\n', ""))
    assert "no scorer for unseen answers" in ratchet("check", only, code=2).stderr


def bad_reward(folder: Path) -> Path:
    """Write a loop file with a misspelt scorer name and return its path."""
    path = loop_file(folder / "r.toml", 'kind = "receiver"')
    path.write_text(path.read_text().replace("final_number", "final_numbr"))
    return path


def test_real_traces_are_ingested_once_and_counts_add_up(ratchet, tmp_path: Path, gsm8k: Path) -> None:
    expected = json.loads((gsm8k / "expected.json").read_text())["formats"]["otlp"]
    path = loop_file(tmp_path / "g.toml", f'kind = "otlp"\npath = "{gsm8k}/otlp"')
    first = json.loads(ratchet("ingest", path, "--json").stdout)
    assert first["kept"] == expected["traces"]
    assert first["read"] == expected["raw"]["spans_delivered"]
    assert first["read"] == first["kept"] + first["duplicate"] + first["skipped"] + first["quarantined"]
    assert first["feedback"]["kept"] == expected["with_feedback"]
    second = json.loads(ratchet("ingest", path, "--json").stdout)
    assert second["kept"] == 0
    assert second["feedback"]["kept"] == 0
    assert second["read"] == first["read"] == second["duplicate"] + second["skipped"] + second["quarantined"]


def test_invalid_records_are_counted_and_the_others_are_kept(ratchet, tmp_path: Path) -> None:
    good = JSONL_RECORD
    lines = [json.dumps(good), "{not json", json.dumps({**good, "id": None}), json.dumps({**good, "id": "2"})]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    path = loop_file(tmp_path / "j.toml", 'kind = "jsonl"\npath = "in.jsonl"')
    counts = json.loads(ratchet("ingest", path, "--json").stdout)
    assert (counts["read"], counts["kept"], counts["quarantined"]) == (4, 2, 2)
    table = ratchet("ingest", path, "--source", tmp_path / "in.jsonl").stdout
    assert "traces" in table
    assert "does not exist" in ratchet("ingest", path, "--source", "nowhere.jsonl", code=2).stderr


def test_doctor_and_verify_before_there_is_an_installation(ratchet) -> None:
    findings = json.loads(ratchet("doctor", "--json").stdout)
    about = {f["about"] for f in findings}
    assert {"python", "torch", "home", "ratchet.rewards", "prefect"} <= about
    assert "ledger" not in about, "nothing is created where there is no installation"
    assert "there is no installation in" in ratchet("verify", code=2).stderr


def test_commands_without_requests_or_cycles_are_errors(ratchet, tmp_path: Path) -> None:
    for words in (["status"], ["approve"], ["explain", "x/1"], ["rollback", "x"]):
        assert "there is no installation in" in ratchet(*words, code=2).stderr
    ratchet("check", loop_file(tmp_path / "w.toml", 'kind = "receiver"'))
    assert "no request is pending" in ratchet("approve", code=2).stderr
    assert "there is no request" in ratchet("reject", "approval/x/0001/rollout", code=2).stderr
    assert "there is no line 'x'" in ratchet("explain", "x/1", code=2).stderr
    assert "there is no line" in ratchet("report", "x", code=2).stderr


def test_adopt_without_torch_names_the_missing_extra(ratchet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.trainers.conftest import write_model

    model, path = write_model(tmp_path / "model"), loop_file(tmp_path / "a.toml", 'kind = "receiver"')
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    try:
        refused = ratchet("adopt", path, model, code=1).stderr
    finally:
        ratchet("serve", path, "--stop")
    assert "needs torch; install ratchet[train]" in refused
    assert "its model server does not run" in refused


def test_operator_adopts_triggers_cancels_and_retries(ratchet, tmp_path: Path) -> None:
    from tests.unit.trainers.conftest import write_model

    path = loop_file(tmp_path / "o.toml", 'kind = "receiver"')
    model = write_model(tmp_path / "model")
    try:
        adopted = ratchet("adopt", path, model)
        steps = [line for line in adopted.stderr.splitlines() if line.endswith("…")]
        assert [step.split()[0] for step in steps] == ["adopting", "looking", "copying", "starting", "registering"]
        assert adopted.stdout == ""
        assert ratchet("adopt", path, model, "--json").stderr == "", "a program may read both streams"
        assert json.loads(ratchet("trigger", "t", "--by", "hana", "--json").stdout)["cycle"] == "cycle/t/0001"
        assert "is still open" in ratchet("retry", "t/1", code=2).stderr
        cancelled = json.loads(ratchet("cancel", path, "--by", "hana", "--json").stdout)
        assert (cancelled["cycle"], cancelled["ended"]) == ("cycle/t/0001", True)
        ratchet("freeze", "t", "--why", "a test", "--by", "hana")
        frozen = ratchet("retry", "t/1", code=2).stderr
        assert "error: line 't' is frozen by hana" in frozen
        ratchet("unfreeze", "t", "--why", "done")
        assert "cycle/t/0002 opened (retry of 1)" in ratchet("retry", "t/1").stderr
        back = json.loads(ratchet("rollback", path, "--by", "hana", "--json").stdout)
        assert (back["completed"], back["champion"]) == (True, json.loads(ratchet("status", "--json").stdout)[0]["champion"])
        assert [row["outcome"] for row in json.loads(ratchet("history", "--json").stdout)] == ["adopted", "cancelled", "cancelled"]
        assert "ended cancelled: cancelled by hana" in ratchet("logs", "t/1").stdout
    finally:
        ratchet("serve", path, "--stop")


def test_plan_shows_the_choice_and_changes_nothing(ratchet, tmp_path: Path, gsm8k: Path) -> None:
    from tests.unit.trainers.conftest import write_model

    path = loop_file(tmp_path / "p.toml", f'kind = "otlp"\npath = "{gsm8k}/otlp"', training="[training]\nmin_pairs = 5000")
    assert "ratchet adopt" in ratchet("plan", path, code=2).stderr
    ratchet("adopt", path, write_model(tmp_path / "model"))
    ratchet("serve", path, "--stop")  # `adopt` has started the model server; `plan --no-probe` does not need it
    ratchet("ingest", path)
    rows = ratchet("verify").stderr
    found = json.loads(ratchet("plan", path, "--no-probe", "--json").stdout)
    assert found["method"] == "sft"
    assert found["estimate"]["parameters"] > 10_000
    assert found["estimate"]["gpu_hours"] == 0
    by_name = {row["rule"]: row for row in found["rules"]}
    assert by_name["pairs"]["change"].endswith("more clean pairs")
    assert not by_name["group coverage"]["holds"]
    (counted,) = found["left_out"]
    assert counted["what"] == "answers"
    assert by_name["sft can use rows of its training set"]["holds"], "the rows are counted with the tokenizer of the adopted model"
    shown = ratchet("plan", path, "--no-probe").stdout
    assert "would change with" in shown
    assert "Estimated cost" in shown
    loop_file(path, f'kind = "otlp"\npath = "{gsm8k}/otlp"', training="[training]\ntimeout = 1\nsft = { steps = 1_000_000_000 }")
    never = json.loads(ratchet("plan", path, "--no-probe", "--json").stdout)
    assert never["method"] != "sft"
    (row,) = (row for row in never["rules"] if row["rule"] == "sft fits its time and budget")
    assert not row["holds"]
    assert row["change"].startswith("training.timeout = ")
    assert ratchet("verify").stderr == rows, "`plan` wrote to the ledger"
