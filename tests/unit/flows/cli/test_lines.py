"""Tests how commands find the line that a user gives, by its name or its loop file, and what they say if there is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from ratchet.contracts.errors import ConfigError, Rejected
from ratchet.flows.cli.main import cli
from ratchet.flows.config.home import Home
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.rollouts import going_back
from ratchet.flows.engine.rollouts.going_back import Back
from ratchet.flows.ledger.sql import SqlLedger
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.cli.homes import LOOP, home_of


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, list(arguments))
    assert result.exit_code == 0, f"{arguments}: {result.output} {result.exception}"
    return result


def refused(*arguments: str) -> str:
    """Return the message of a command that must fail with a ConfigError, which `ratchet` exits with 2 for."""
    result = CliRunner().invoke(cli, list(arguments))
    assert isinstance(result.exception, ConfigError), f"{arguments}: {result.output} {result.exception!r}"
    assert result.stdout == ""
    return str(result.exception)


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the home of a promoted line and the line's loop file."""
    folder = tmp_path_factory.mktemp("company") / "shop"
    folder.mkdir()
    sim = SimulatedLine(Scenario(seed=1))
    sim.live()
    home_of(sim, folder).root.rename(folder / ".ratchet")
    (folder / "loop.toml").write_text(LOOP)
    return folder


@pytest.fixture
def shop(promoted: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the commands in this folder, without RATCHET_HOME. The test must not write."""
    monkeypatch.chdir(promoted)
    monkeypatch.delenv("RATCHET_HOME", raising=False)
    return promoted


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlLedger]:
    """The ledger of a line with two versions and no open cycle, for a command that writes."""
    sim = SimulatedLine(Scenario(seed=1))
    sim.live()
    home = home_of(sim, tmp_path)
    (tmp_path / "loop.toml").write_text(LOOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RATCHET_HOME", str(home.root))
    return SqlLedger(home.ledger_url)


def alone(folder: Path) -> Path:
    """Return a new folder below this one, so that the homes of other tests are not beside it."""
    inner = folder / "alone" / "shop"
    inner.mkdir(parents=True)
    return inner


# Names and files alike


NAMES = {"line", "loop", "loops", "cycle", "request"}


def arguments() -> Iterator[tuple[str, click.Argument]]:
    def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Argument]]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from walk(inner, f"{path} {name}".strip())
        else:
            yield from ((path, one) for one in command.params if isinstance(one, click.Argument) and one.name in NAMES)

    return walk(cli, "")


def test_every_argument_that_names_a_line_is_completed_from_the_ledger(shop: Path) -> None:
    found = list(arguments())
    assert {path.split()[0] for path, _ in found} > {"rollback", "cancel", "freeze", "trigger", "status", "approve", "logs", "run", "plan"}
    for path, argument in found:
        offered = [one.value for one in argument.shell_complete(click.Context(cli), "si")]
        wanted = [] if argument.name == "request" else ["sim"]
        assert offered[: len(wanted)] == wanted, path


@pytest.mark.parametrize("command", ["status", "history", "explain", "logs"])
def test_a_command_shows_the_same_for_the_line_and_for_its_loop_file(shop: Path, command: str) -> None:
    by_name, by_file = run(command, "sim"), run(command, "loop.toml")
    assert by_name.stdout == by_file.stdout
    assert by_name.stderr.splitlines()[0] == "taken as the line sim"
    assert by_file.stderr.splitlines()[0] == "taken as the loop file loop.toml of the line sim"
    assert run(command, str(shop / "loop.toml")).stdout == by_name.stdout


@pytest.mark.parametrize("command", ["status", "history", "explain", "logs"])
@pytest.mark.parametrize("given", ["sim", "loop.toml"])
def test_with_json_nothing_says_what_was_taken(shop: Path, command: str, given: str) -> None:
    result = run(command, given, "--json")
    assert json.loads(result.stdout)
    assert result.stderr == ""


def test_without_a_name_a_command_says_that_it_took_the_only_line(shop: Path) -> None:
    assert run("history").stderr.splitlines()[0] == "taken as the only line: sim"


def test_a_file_without_the_suffix_is_a_loop_file(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "support").write_text(LOOP)
    assert run("history", str(tmp_path / "support")).stdout == run("history", "sim").stdout


@pytest.mark.parametrize("given", ["sim", "loop.toml"])
def test_a_rollback_is_requested_by_name_and_by_file(own: SqlLedger, given: str) -> None:
    result = run("rollback", given, "--by", "ada", "--no-wait")
    assert "rollback of line sim requested" in result.stderr
    assert [row.data["actor"] for row in own.read("line/sim") if row.kind == "rollback_asked"] == ["ada"]


@pytest.mark.parametrize("damage", ["broken", "missing", "renamed"])
def test_a_rollback_needs_no_valid_loop_file(own: SqlLedger, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file, used = Path("loop.toml"), list[LineContext]()
    if damage == "missing":
        file.unlink()
    else:
        file.write_text("not TOML" if damage == "broken" else LOOP.replace('"sim"', '"other"', 1))

    def back(context: LineContext, tag: str, *_: object) -> Back:
        used.append(context)
        return Back(tag, True)

    monkeypatch.setattr(going_back, "bring_back", back)
    result = run("rollback", "sim", "--by", "ada")
    assert result.exit_code == 0, result.stderr
    assert "the loop file cannot be used (" in result.stderr
    assert "the rollback uses the settings of cycle/sim/" in result.stderr
    assert "every session of line sim is on" in result.stderr
    assert [context.line for context in used] == ["sim"]
    assert [row.data["actor"] for row in own.read("line/sim") if row.kind == "rollback_asked"] == ["ada"]


@pytest.mark.parametrize("given", ["sim", "loop.toml"])
def test_a_freeze_takes_both(own: SqlLedger, given: str) -> None:
    assert json.loads(run("freeze", given, "--why", "x", "--json").stdout)["changed"]


@pytest.mark.parametrize("given", ["sim", "loop.toml"])
def test_a_token_is_made_for_both(own: SqlLedger, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.flows.composition.installation.Installation.loop_file", lambda *_: Path("loop.toml"))
    assert json.loads(run("token", "add", given, "review", "--json").stdout)["name"] == "review"


# What does not exist


def test_an_unknown_line_names_the_closest_one_first_and_then_all(shop: Path) -> None:
    said = refused("rollback", "smi")
    assert said.startswith("there is no line 'smi'; did you mean 'sim'? Lines in ")
    assert said.endswith("(RATCHET_HOME is not set, so it is .ratchet in the current folder): sim")


@pytest.mark.usefixtures("own")
def test_a_line_with_traces_and_no_model_is_not_called_unknown() -> None:
    (Home.from_environment().root / "lines" / "new" / "lake").mkdir(parents=True)
    said = refused("quarantine", "list", "new")
    assert said.startswith("line 'new' in ")
    assert "has traces and no model yet; pass the path of its loop file in place of its name" in said


@pytest.mark.parametrize(
    "command", ["rollback", "cancel", "trigger", "status", "logs", "explain", "run", "plan", "ingest", "check", "approve"]
)
def test_no_command_suggests_init_for_an_unknown_name(shop: Path, command: str) -> None:
    said = refused(command, "support")
    assert "there is no line 'support'" in said
    assert "init" not in said
    assert "sim" in said


def test_a_missing_loop_file_is_named_with_the_lines_that_exist(shop: Path) -> None:
    said = refused("rollback", "sim.toml")
    assert said.startswith("there is no loop file sim.toml; did you mean 'sim'? A line's name can be given instead; lines in ")
    assert refused("freeze", "sim/1", "--why", "x") == "there is no loop file sim/1; name the line 'sim' without '/1'"


@pytest.mark.parametrize("place", ["deeper/still", "../beside"])
@pytest.mark.parametrize(
    "command", [["status"], ["rollback", "sim"], ["history"], ["approve"], ["logs", "sim/1"], ["plan", "sim"], ["anchor"], ["verify"]]
)
def test_in_a_wrong_folder_the_installation_nearby_is_named(
    shop: Path, place: str, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = (shop / place).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(folder)
    said = refused(*command)
    assert f"{folder}/.ratchet (RATCHET_HOME is not set, so it is .ratchet in the current folder)" in said
    assert f"another installation is in {shop}/.ratchet (line sim); to use it, set RATCHET_HOME={shop}/.ratchet" in said
    assert "init" not in said
    assert list(folder.iterdir()) == [], "a command that finds no installation creates none"


def test_a_loop_file_of_another_installation_says_where_that_is(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shop / "elsewhere").mkdir(exist_ok=True)
    monkeypatch.chdir(shop / "elsewhere")
    said = refused("rollback", "../loop.toml")
    assert f"set RATCHET_HOME={shop}/.ratchet" in said


def test_a_wrong_ratchet_home_is_named_with_its_value(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "typo"))
    said = refused("status")
    assert f"RATCHET_HOME is set to '{tmp_path}/typo'" in said
    assert f"set RATCHET_HOME={shop}/.ratchet" in said


def test_an_installation_without_a_line_says_how_a_line_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(alone(tmp_path))
    monkeypatch.delenv("RATCHET_HOME", raising=False)
    SqlLedger(Home.from_environment().ledger_url)
    result = run("status")
    assert result.stdout == ""
    assert "there is no line in " in result.stderr
    assert result.stderr.endswith("`ratchet adopt LOOP.toml MODEL_FOLDER` creates a line\n")
    assert json.loads(run("status", "--json").stdout) == []


def test_an_installation_without_a_line_beside_one_with_lines_is_the_wrong_one(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shop.parent / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    SqlLedger(Home.from_environment().ledger_url)
    assert f"set RATCHET_HOME={shop}/.ratchet" in refused("status")


def test_the_first_command_of_a_new_user_may_suggest_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(alone(tmp_path))
    monkeypatch.delenv("RATCHET_HOME", raising=False)
    assert refused("check", "loop.toml") == "there is no loop file loop.toml; create one with `ratchet init loop.toml`"


def test_a_missing_line_names_the_lines_and_the_loop_files(shop: Path) -> None:
    for command in (["rollback"], ["freeze", "--why", "x"], ["serve"], ["check"]):
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 2
        assert "lines: sim; loop files here: loop.toml" in " ".join(result.stderr.split()), command


def test_a_request_that_is_not_there_is_not_counted(shop: Path) -> None:
    problem = CliRunner().invoke(cli, ["approve"]).exception
    assert isinstance(problem, Rejected)
    assert "no request is pending; `ratchet status` shows what each cycle waits for" in str(problem)


@pytest.mark.parametrize("command", [["verify"], ["erase", "--user", "ada"]])
def test_what_finds_nothing_in_an_installation_without_a_line_is_no_success(
    shop: Path, command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "fresh"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RATCHET_HOME", str(folder))
    for _ in range(2):
        assert "there is no " in refused(*command)
        SqlLedger(Home.from_environment().ledger_url)
    assert not (folder / "erasures").exists(), "no receipt says that something was erased"
    assert not (folder / "user-keys.json").exists()


def test_a_loop_file_in_a_wrong_folder_begins_no_second_installation(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own"
    shutil.copytree(shop, own)
    monkeypatch.chdir(own)
    run("takeover", "loop.toml", "--why", "the simulated line has no file", "--by", "ada")
    folder = tmp_path / "wrong"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for command in (["ingest"], ["check"], ["run"], ["adopt"]):
        said = refused(*command, "../own/loop.toml", *(["model"] if command == ["adopt"] else []))
        assert f"line 'sim' of ../own/loop.toml is in {own}/.ratchet" in said
        assert f"set RATCHET_HOME={own}/.ratchet; for a second one, set RATCHET_HOME={folder}/.ratchet" in said
    assert list(folder.iterdir()) == []


def test_the_doctor_creates_no_installation_and_names_the_one_nearby(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shop.parent / "ill"
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    found = {one["about"]: one for one in json.loads(CliRunner().invoke(cli, ["doctor", "--json"]).stdout)}
    assert found["home"]["level"] == "note"
    assert f"set RATCHET_HOME={shop}/.ratchet" in found["home"]["text"]
    assert "ledger" not in found
    assert list(folder.iterdir()) == []
