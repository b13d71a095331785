"""Tests of the loop file to which a line belongs: other files are refused, and a takeover is a recorded decision."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.flows.cli.main import cli
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.cli.homes import LOOP, home_of


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert result.exit_code == 0, f"{arguments}: {result.output} {result.exception}"
    return result


def refused(*arguments: str | Path) -> str:
    """Run a command that must fail with an error of its configuration, and return the message."""
    result = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert isinstance(result.exception, ConfigError), f"{arguments}: {result.output} {result.exception!r}"
    return str(result.exception)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The loop file of a line with a promoted cycle, and a copy of it in another folder."""
    sim = SimulatedLine(Scenario(seed=1))
    sim.live()
    home = home_of(sim, tmp_path)
    monkeypatch.setenv("RATCHET_HOME", str(home.root))
    own, copy = tmp_path / "loop.toml", tmp_path / "elsewhere" / "loop.toml"
    copy.parent.mkdir()
    for file in (own, copy):
        file.write_text(LOOP)
    run("takeover", own, "--why", "begin", "--by", "ada")
    return own, copy


def rows(home: Path) -> int:
    return sum(Installation(Home(home)).ledger.lengths(Installation(Home(home)).ledger.streams("")).values())


ACTING = [
    ("ingest", "FILE"),
    ("adopt", "FILE", "MODEL"),
    ("serve", "FILE"),
    ("serve", "FILE", "--stop"),
    ("trigger", "FILE"),
    ("retry", "sim/1", "--loop", "FILE"),
    ("run", "FILE"),
    ("plan", "FILE"),
    ("freeze", "FILE", "--why", "x"),
    ("unfreeze", "FILE", "--why", "x"),
    ("cancel", "FILE"),
    ("rollback", "FILE", "--no-wait"),
    ("approve", "FILE"),
    ("names", "FILE", "--end", "sim", "--why", "x"),
    ("token", "add", "FILE", "feedback"),
    ("quarantine", "replay", "FILE", "--all"),
    ("judge", "export", "FILE", "OUT"),
]


@pytest.mark.parametrize("command", ACTING, ids=lambda command: " ".join(command[:2]))
def test_command_that_acts_refuses_a_copy_and_names_both_files_and_the_remedy(
    command: tuple[str, ...], files: tuple[Path, Path], tmp_path: Path
) -> None:
    own, copy = files
    before = rows(tmp_path / "home")
    message = refused(*[{"FILE": copy, "MODEL": tmp_path, "OUT": tmp_path / "out.jsonl"}.get(one, one) for one in command])
    assert str(own) in message
    assert str(copy) in message
    assert f"ratchet takeover {copy} --why" in message
    assert rows(tmp_path / "home") == before


def test_commands_that_only_read_take_a_copy(files: tuple[Path, Path]) -> None:
    for command in ("status", "history", "explain", "names"):
        run(command, files[1])


def test_takeover_is_recorded_with_its_reason_and_shown(files: tuple[Path, Path]) -> None:
    own, copy = files
    assert str(own) in run("takeover", copy, "--why", "the team has moved", "--by", "hana").output
    for command in ("status", "history", "explain"):
        shown = " ".join(run(command, "sim").output.split())
        assert "hana" in shown, command
        assert "the team has moved" in shown, command
        assert str(copy) in shown.replace(" ", ""), command
    taken = json.loads(run("status", "sim", "--json").stdout)[0]["taken_over"]
    assert (taken["file"], taken["former"], taken["actor"]) == (str(copy), str(own), "hana")
    run("freeze", copy, "--why", "x")
    assert f"belongs to the loop file {copy}" in refused("freeze", own, "--why", "x")
    assert "already belongs" in run("takeover", copy, "--why", "again").output
    assert len(Installation(Home.from_environment()).line("sim").takeovers) == 2


@pytest.mark.parametrize("command", ACTING, ids=lambda command: " ".join(command[:2]))
def test_command_that_acts_refuses_the_file_of_another_line_that_was_renamed(
    command: tuple[str, ...], files: tuple[Path, Path], tmp_path: Path
) -> None:
    own, _ = files
    own.write_text(LOOP.replace('name = "sim"', 'name = "desk"'))
    before = rows(tmp_path / "home")
    message = refused(*[{"FILE": own, "MODEL": tmp_path, "OUT": tmp_path / "out.jsonl"}.get(one, one) for one in command])
    assert f"{own} is the loop file of line 'sim', and names line 'desk' now" in message
    assert "Restore `line.name`" in message
    assert rows(tmp_path / "home") == before
    assert not (tmp_path / "home" / "lines" / "desk").exists()


def test_check_says_that_a_line_was_renamed_and_a_copy_can_begin_a_new_line(files: tuple[Path, Path]) -> None:
    own, copy = files
    for file in files:
        file.write_text(LOOP.replace('name = "sim"', 'name = "desk"'))
    assert "is the loop file of line 'sim'" in refused("check", own)
    assert "is the loop file of line 'sim'" not in CliRunner().invoke(cli, ["check", str(copy)]).output
    run("ingest", copy)


def test_a_new_file_in_the_place_of_a_moved_one_begins_a_new_line_after_the_takeover(files: tuple[Path, Path], tmp_path: Path) -> None:
    own, _ = files
    own.rename(tmp_path / "sim.toml")
    own.write_text(LOOP.replace('name = "sim"', 'name = "desk"'))
    assert "run `ratchet takeover PATH --why TEXT` with its present path first" in refused("ingest", own)
    run("takeover", tmp_path / "sim.toml", "--why", "moved")
    run("ingest", own)


def test_a_link_that_points_to_the_file_of_another_line_does_not_hold_that_file(files: tuple[Path, Path], tmp_path: Path) -> None:
    link, other = tmp_path / "current.toml", tmp_path / "desk.toml"
    link.symlink_to(files[0])
    run("takeover", files[1], "--why", "so that the link is another file")
    run("takeover", link, "--why", "by its link")
    other.write_text(LOOP.replace('name = "sim"', 'name = "desk"'))
    link.unlink()
    link.symlink_to(other)
    run("ingest", other)


def test_moved_file_is_told_from_a_copy_and_has_a_remedy(files: tuple[Path, Path]) -> None:
    own, copy = files
    own.unlink()
    message = refused("ingest", copy)
    assert f"{own}, which does not exist" in message
    assert f"ratchet takeover {copy} --why" in message
    assert "ratchet takeover PATH" in refused("ingest", "sim"), "by the line's name"
    run("takeover", copy, "--why", "moved")
    run("freeze", copy, "--why", "x")


def test_another_path_to_the_same_file_is_no_other_file(files: tuple[Path, Path], tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(files[0])
    run("freeze", link, "--why", "x")
    run("unfreeze", tmp_path / "elsewhere" / ".." / "loop.toml", "--why", "x")


def test_check_says_that_the_line_belongs_to_another_file(files: tuple[Path, Path]) -> None:
    assert "belongs to the loop file" in refused("check", files[1])


def test_check_says_what_a_changed_model_name_does(files: tuple[Path, Path]) -> None:
    own, _ = files
    own.write_text(LOOP.replace('served_model = "sim"', 'served_model = "new"'))
    result = CliRunner().invoke(cli, ["check", str(own), "--json"])
    found = {one["about"]: one for one in json.loads(result.stdout)["findings"]}["served_model"]
    assert found["level"] == "warning"
    for part in ("'new'", "ratchet names sim --end"):
        assert part in found["text"]


def test_a_ledger_that_is_away_does_not_end_the_service(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The service asks for the context of its lines again and again. It waits for its ledger."""
    installation = Installation(Home.from_environment())

    def away(_line: str) -> None:
        raise Retryable("the ledger is not available")

    monkeypatch.setattr(installation, "line", away)
    assert installation.context(files[0]).line == "sim"
