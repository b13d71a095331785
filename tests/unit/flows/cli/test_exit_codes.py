"""Tests that commands exit with the documented codes, and say what is wrong, where, and what to do."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ratchet.contracts.cycle import Append, Row
from ratchet.contracts.errors import Conflict, Inconclusive, Leased, Permanent, Rejected, Unwritable
from ratchet.flows.cli.main import exit_code, main
from ratchet.flows.config.home import Home
from ratchet.flows.ledger.sql import SqlLedger
from tests.unit.contracts.test_wording import PYDANTIC
from tests.unit.flows.cli.homes import LOOP

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the commands in a folder with a loop file."""
    folder = tmp_path / "company" / "shop"
    folder.mkdir(parents=True)
    (folder / "loop.toml").write_text(LOOP)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("RATCHET_HOME", raising=False)
    return folder


def ended(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a command as the shell does, and return its exit code and the lines with its error."""
    with pytest.raises(SystemExit) as code:
        main(list(arguments))
    said = capsys.readouterr().err
    assert not PYDANTIC.search(said), said
    assert "Traceback" not in said
    return int(code.value.code or 0), said[max(said.find(prefix) for prefix in ("error: ", "failed: ", "retry later: ")) :]


def test_each_class_of_errors_has_the_documented_code() -> None:
    documented = re.findall(r"^\| (\d) \| `?([a-z –]+):?`? \|", (ROOT / "docs/howto/troubleshooting.md").read_text(), re.MULTILINE)
    assert documented == [("0", "–"), ("1", "failed"), ("2", "error"), ("3", "retry later")]
    assert [exit_code(one) for one in (Permanent(""), Inconclusive(""))] == [1, 1]
    assert [exit_code(one) for one in (Rejected(""), Unwritable(""))] == [2, 2]
    assert [exit_code(one) for one in (Conflict(""), Leased(""))] == [3, 3]


@pytest.mark.parametrize("name", ["", "/deeper"])
def test_a_file_in_the_place_of_the_home_is_an_error(
    shop: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shop / "file").touch()
    monkeypatch.setenv("RATCHET_HOME", f"{shop}/file{name}")
    code, said = ended(capsys, "check", "loop.toml")
    assert code == 2
    assert said.startswith("error: cannot ")
    assert f"{shop}/file{name}: a file is where a folder must be; make the folder writable for this user, or set RATCHET_HOME" in said


def test_a_folder_that_nobody_can_write_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RATCHET_HOME", "/proc/ratchet")
    code, said = ended(capsys, "check", "loop.toml")
    assert code == 2
    assert said.startswith("error: cannot create the ledger's folder /proc/ratchet: ")
    assert "; make the folder writable for this user, or set RATCHET_HOME to a writable folder" in said


def test_permissions_and_a_full_disk_have_different_codes() -> None:
    from errno import EACCES, ENOSPC, EROFS

    from ratchet.runtime.file_errors import unwritable

    lasting = [unwritable("write /x", OSError(code, os.strerror(code))) for code in (EACCES, EROFS)]
    assert [exit_code(one) for one in lasting] == [2, 2]
    full = unwritable("write /x", OSError(ENOSPC, os.strerror(ENOSPC)))
    assert exit_code(full) == 3
    assert str(full) == "cannot write /x: No space left on device; free space, then try again"


def test_a_folder_and_an_unreadable_text_are_no_loop_files(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shop / "folder.toml").mkdir()
    assert ended(capsys, "check", "folder.toml") == (2, "error: folder.toml is a folder; pass a loop file (*.toml)\n")
    (shop / "latin.toml").write_bytes(b"\xe4")
    assert ended(capsys, "check", "latin.toml")[0] == 2


def test_a_misspelt_required_key_is_one_error(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shop / "loop.toml").write_text(LOOP.replace("served_model", "serve_model"))
    said = "error: loop.toml: unknown key 'line.serve_model'; did you mean 'served_model'? It is required\n"
    assert ended(capsys, "check", "loop.toml") == (2, said)


def test_an_unknown_source_points_to_the_page_about_sources(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shop / "loop.toml").write_text(LOOP.replace('kind = "receiver"', 'kind = "kafka"'))
    code, said = ended(capsys, "check", "loop.toml")
    assert code == 2
    assert said.startswith("error: sources.in.kind: no source 'kafka' is installed; installed: ")
    assert said.endswith("; to write your own, see docs/extending/source.md\n")
    assert (ROOT / "docs/extending/source.md").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("[holdout]\nfraction = 2\n", "holdout.fraction: it must be less than 1 (found 2)"),
        ('[rollout]\nmargin = "x"\n', "rollout.margin: a number is required (found 'x')"),
        ('[approvals.training]\nmode = "none"\n', "approvals.training.mode: it must be 'person' or 'auto' (found 'none')"),
        ('[serving.options]\nthreads = "many"\n', "serving.options.threads: a whole number is required (found 'many')"),
        ("[serving.router_options]\nper_caller = 0\n", "serving.router_options.per_caller: it must be at least 1 (found 0)"),
        ('[training.sft]\nsteps = "x"\n', "SFT recipe: steps"),
        ('[[rewards]]\nname = "regex"\noptions = { pattern = 3 }\n', "option 'pattern': text is required (found 3)"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_its_rule(shop: Path, capsys: pytest.CaptureFixture[str], more: str, said: str) -> None:
    (shop / "loop.toml").write_text(LOOP + more)
    code, error = ended(capsys, "check", "loop.toml")
    assert code == 2
    assert said in error


@pytest.mark.slow
@pytest.mark.parametrize("url", ["nonsense", "oracle://x"])
def test_a_wrong_url_of_the_ledger_names_its_variable(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RATCHET_LEDGER_URL", url)
    code, said = ended(capsys, "status")
    assert code == 2
    assert said.startswith("error: RATCHET_LEDGER_URL")


def test_a_changed_row_of_the_ledger_is_named_without_its_content(capsys: pytest.CaptureFixture[str]) -> None:
    row = Row(kind="adopted", data={"version": {"line": "sim", "number": "a text of a user"}})
    SqlLedger(Home.from_environment().ledger_url).append([Append(stream="line/sim", after=0, rows=(row,))], None, datetime.now(UTC))
    code, said = ended(capsys, "status")
    assert code == 1
    assert "is not a valid Adopted: version.number: a whole number is required" in said
    assert "`ratchet verify` shows whether the ledger was changed" in said
    assert "a text of a user" not in said


def test_an_output_file_in_a_missing_folder_is_an_error(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = ended(capsys, "init", "nowhere/loop.toml")
    assert (code, said) == (2, "error: cannot write nowhere/loop.toml: the folder nowhere does not exist; create it first\n")
