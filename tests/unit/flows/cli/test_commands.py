"""Tests of the commands on the ledger of a simulated line: results, JSON, errors, suggestions and completion."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner, Result

from ratchet.contracts.cycle import Answer, Append, Identity
from ratchet.contracts.data.datasets import PromptGroup
from ratchet.contracts.errors import ConfigError, RatchetError, Rejected
from ratchet.contracts.ids import line_stream
from ratchet.contracts.rows import CycleEnd, Reason, row_of
from ratchet.contracts.steps import FreezeResult, State
from ratchet.flows.cli.main import ALIASES, COMMANDS, HINTS, cli, main
from ratchet.flows.config.home import Home
from ratchet.flows.core.requests import fold_approval
from ratchet.flows.engine.advance import advance
from ratchet.flows.engine.line import answer, open_cycle
from ratchet.flows.ledger.sql import SqlLedger
from tests.simulation.searched import searched
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.cli.homes import LOOP, home_of
from tests.unit.flows.cycles import knowing, plan_result


def run(*arguments: str | Path) -> Result:
    """Run a command that must succeed."""
    result = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert result.exit_code == 0, f"{arguments}: {result.output} {result.exception}"
    return result


def refused(*arguments: str | Path) -> str:
    """Run a command that must fail with an error for users, and return its message."""
    result = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert isinstance(result.exception, RatchetError), f"{arguments}: {result.output} {result.exception!r}"
    return str(result.exception)


def as_json(*arguments: str | Path) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home whose line has one promoted cycle. Tests with this fixture only read."""
    sim = SimulatedLine(Scenario(seed=1))
    sim.note = "looks right \x1b[2J"
    sim.live()
    return home_of(sim, tmp_path_factory.mktemp("promoted"))


@pytest.fixture
def reads(promoted: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """Run the commands of a test in the home with a promoted cycle, and assert that they change no row."""
    monkeypatch.setenv("RATCHET_HOME", str(promoted.root))
    before = SqlLedger(promoted.ledger_url).heads()
    yield promoted
    assert SqlLedger(promoted.ledger_url).heads() == before


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home whose line has adopted its model and whose loop file the ledger names."""
    monkeypatch.chdir(tmp_path)
    sim = SimulatedLine(Scenario(seed=1))
    [adopted] = sim.ledger.rows[line_stream("sim")]
    place = {"folder": str(tmp_path), "file": "loop.toml"}
    sim.ledger.rows[line_stream("sim")] = [adopted.model_copy(update={"data": {**adopted.data, **place}})]
    home = home_of(sim, tmp_path)
    (tmp_path / "loop.toml").write_text(LOOP)
    monkeypatch.setenv("RATCHET_HOME", str(home.root))
    return home


# All commands

WITHOUT_JSON = {
    "k8s images": "its output is a shell script",
    "k8s keys": "its output is YAML",
    "k8s render": "its output is YAML",
    "proxy": "its output is a configuration",
    "prefect render": "its output is YAML",
    "completion": "its output is a shell script",
    "dev cluster up": "another program prints",
    "dev cluster down": "another program prints",
    "dev cluster lose": "another program prints",
    "dev cluster status": "another program prints",
}
"""Commands without --json, and why."""


def commands(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield the path and the object of each command that is no group."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from commands(inner, f"{path} {name}".strip())


def test_every_command_prints_json_on_request() -> None:
    found = dict(commands(cli))
    assert set(WITHOUT_JSON) <= set(found)
    for path, command in found.items():
        has = any("--json" in option.opts for option in command.params)
        assert has != (path in WITHOUT_JSON), path


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_an_alias_is_the_command(alias: str, name: str) -> None:
    ours, its = (CliRunner().invoke(cli, [word, "--help"]) for word in (alias, name))
    assert (ours.exit_code, ours.output) == (0, its.output)
    assert re.search(rf"^  {alias}  ", CliRunner().invoke(cli, ["--help"]).output, re.MULTILINE) is None


def test_the_help_lists_every_command_once() -> None:
    text = CliRunner().invoke(cli, ["--help"]).output
    assert all(len(re.findall(rf"^  {name} ", text, re.MULTILINE)) == 1 for name in COMMANDS)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        *((name, text) for name, text in HINTS.items()),
        ("statsu", "did you mean 'status'?"),
        ("validat", "did you mean 'check'?"),
        ("histroy", "did you mean 'history'?"),
        ("demolish", "see `ratchet --help`"),
    ],
)
def test_an_unknown_command_says_what_to_use_instead(typed: str, said: str) -> None:
    result = CliRunner().invoke(cli, [typed])
    assert result.exit_code == 2
    assert said in result.output


def test_deploy_does_not_suggest_the_demo() -> None:
    assert "demo" not in CliRunner().invoke(cli, ["deploy"]).output


def test_codes_of_errors_are_not_shown(line: Home, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["freeze", "sim", "--why", "x", "--by", "hana"])
    assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        main(["trigger", "sim"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "line 'sim' is frozen by hana" in said
    assert "frozen: line" not in said
    assert line.root.exists()


# Commands that read


def test_logs_tell_the_cycle_in_sentences_and_show_texts_as_text(reads: Home) -> None:
    text = run("logs", "sim/1").stdout
    assert "cycle/sim/0001 opened (simulated); the champion is v-" in text
    assert "ada approved the training via cli: looks right \\x1b[2J" in text
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ended promoted: ", text, re.MULTILINE)
    assert run("logs", "--follow").stdout == text, "an ended cycle is not followed"
    found = as_json("logs", "sim")
    assert len(found) == len(text.splitlines())
    lines = [json.loads(one) for one in run("logs", "sim", "--follow", "--json").stdout.splitlines()]
    assert lines == found


def test_follow_shows_new_moments_once_until_the_cycle_ends() -> None:
    from ratchet.flows.cli.look.logs import followed
    from ratchet.flows.report.timeline import Moment
    from tests.unit.flows.cycles import NOON

    moments = [Moment(NOON, "cycle/sim/0001", number, "done", str(number)) for number in range(1, 5)]
    looks = iter([(moments[:2], False), (moments[:2], False), (moments, True)])
    slept: list[float] = []
    assert [one.text for one in followed(lambda: next(looks), True, slept.append)] == ["1", "2", "3", "4"]
    assert len(slept) == 2


def test_history_has_one_row_per_version(reads: Home) -> None:
    rows = as_json("history", "sim")
    assert [(row["name"], row["outcome"], row["standing"]) for row in rows] == [
        ("sim/0", "adopted", "previous"),
        ("sim/0001", "promoted", "champion"),
    ]
    assert rows[1]["difference"]["estimate"] == 0.2
    text = run("history").stdout
    assert "+0.200 (+0.150 to +0.250)" in text
    assert "(champion)" in text


def test_diff_names_versions_in_several_ways(reads: Home) -> None:
    first = as_json("diff", "sim/0", "sim/1")
    assert first["compared_in"] == "cycle/sim/0001"
    assert first["comparison"]["overall"]["difference"]["estimate"] == 0.2
    assert as_json("diff", "sim/previous", "sim/champion") == first
    assert as_json("diff", first["old"], first["new"][:8]) == first
    assert "The gate of cycle/sim/0001 compared the two." in run("diff", "sim/0", "sim/1").stdout
    assert "made no version; versions of line sim: sim/0, sim/1" in refused("diff", "sim/0", "sim/7")
    assert "there is no version 'v-nothing'" in refused("diff", "sim/0", "v-nothing")


def test_explain_shows_the_search_as_a_table_and_as_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1, search=True))
    sim.live()
    monkeypatch.setenv("RATCHET_HOME", str(home_of(sim, tmp_path).root))
    shown = run("explain", "sim/1").stdout.partition("Search over recipes")[2].partition("\nTraining")[0]
    won, found = sim.view().chosen, searched(sim.view())
    assert won is not None
    name, score = re.escape(f"{won.trial}: {won.variant}"), re.escape(f"{found.score:.3f}")
    assert re.search(rf"{name} +\d+ +{score} +{re.escape(f'{found.gain:+.3f}')} ± {found.error:.3f} +\d+ +chosen", shown)
    assert re.search(rf"  {name} +#+ +{score}  chosen\n", shown)
    assert "optimistic estimate" in shown


def test_status_explain_and_report_do_not_show_an_answered_request_as_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    cycle = open_cycle(sim.context, "a test")
    while not sim.ledger.streams("approval/"):
        advance(cycle, sim.context)
    open_home = home_of(sim, tmp_path / "before")
    request = fold_approval(sim.ledger.read("approval/sim/0001/training"))
    given = Answer(approve=True, actor="hana", identity=Identity.CLAIMED, via="cli")
    answer(sim.ledger, request, given, sim.clock.now())
    sim.ledger.acquire(line_stream("sim"), "host/1/id-1/1/the reconciler/1", 60, sim.clock.now())
    home = home_of(sim, tmp_path)
    monkeypatch.setenv("RATCHET_HOME", str(home.root))
    [found] = as_json("status")
    assert re.fullmatch(r"planned; approved by hana \d\d:\d\d UTC; continuing", found["waits"])
    assert "Approved by hana (identity claimed, via cli) at" in run("explain", "sim/1").stdout
    assert "not answered" not in run("explain", "sim/1").stdout
    page = Path(run("report", "sim").stdout.strip()).read_text()
    assert "approved by hana" in page.lower()
    assert as_json("report", "sim") == {"line": "sim", "path": str(home.reports / "sim.html")}
    monkeypatch.setenv("RATCHET_HOME", str(open_home.root))
    [waiting] = as_json("status")
    assert "has expired" in waiting["waits"], "the simulated time is long ago"


def test_status_shows_which_process_is_busy(line: Home) -> None:
    now = datetime.now(UTC)
    SqlLedger(line.ledger_url).acquire(line_stream("sim"), f"host/1/id-1/1/the reconciler/{int(now.timestamp()) - 12}", 60, now)
    [found] = as_json("status")
    assert re.fullmatch(r"the reconciler \(1[23] s\)", found["busy"])
    assert "sim is busy: the reconciler (1" in run("status").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["logs", "smi/1"], "there is no line 'smi'; did you mean 'sim'?"),
        (["logs", "sim/7"], "there is no cycle 'sim/7'; cycles of the line: sim/0001"),
        (["history", "smi"], "there is no line 'smi'; did you mean 'sim'?"),
        (["freeze", "smi", "--why", "x"], "there is no line 'smi'"),
        (["open", "approval/sim/0001/other"], "there is no request"),
        (["retry", "sim/1"], "the ledger does not name the loop file of line 'sim'; give the path of the file"),
    ],
)
def test_errors_name_the_known_names(reads: Home, arguments: list[str], said: str) -> None:
    assert said in refused(*arguments)


def test_open_prints_the_page_without_a_browser(reads: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    page = (reads.reports / "sim.html").as_uri()
    assert as_json("open") == {"url": page, "opened": False}
    assert run("open", "sim").stdout.strip() == page
    assert run("open", "sim/1").stdout.strip() == f"{page}#cycle/sim/0001"
    assert 'id="cycle/sim/0001"' in (reads.reports / "sim.html").read_text()
    answered = run("open", "sim/1/training")
    assert "no Prefect server answers" in answered.stderr
    assert answered.stdout.strip() == f"{page}#cycle/sim/0001"


def test_open_finds_the_run_of_the_cycle_in_prefect(reads: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        {"id": "other", "name": "a-sim/0001", "parameters": {"line": "a-sim"}, "tags": []},
        {"id": "cycle", "name": "sim/0001", "parameters": {"line": "sim"}, "tags": ["ratchet"]},
    ]
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr("ratchet.flows.prefect.server.known_url", lambda _home: "http://127.0.0.1:4200/api")
    monkeypatch.setattr("httpx.post", lambda *_args, **_kwargs: httpx.Response(200, json=runs))
    for arguments in (["sim/1/training"], ["sim/1", "--prefect"], ["sim", "--prefect"]):
        assert as_json("open", *arguments, "--no-browser")["url"] == "http://127.0.0.1:4200/v2/runs/flow-run/cycle"
    assert as_json("open", "--no-browser")["url"] == "http://127.0.0.1:4200"
    runs.clear()
    assert as_json("open", "sim/1/training", "--no-browser")["url"] == "http://127.0.0.1:4200/v2/runs"


def test_open_opens_the_browser_once(reads: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setenv("BROWSER", "a browser")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    assert as_json("open", "sim")["opened"]
    assert opened == [(reads.reports / "sim.html").as_uri()]
    assert not as_json("open", "sim", "--no-browser")["opened"]


# Commands that write


def test_freeze_and_unfreeze_are_recorded_once_and_shown(line: Home) -> None:
    why = "the labels are wrong"
    first = as_json("freeze", "sim", "--why", why, "--by", "hana")
    assert (first["changed"], first["frozen"]["actor"], first["frozen"]["reason"]) == (True, "hana", why)
    assert not as_json("freeze", "loop.toml", "--why", "again", "--by", "ben")["changed"]
    assert "already frozen by hana" in run("freeze", "sim", "--why", "x").stderr
    assert as_json("status")[0]["frozen"]["actor"] == "hana"
    assert f"sim is frozen by hana since {first['frozen']['since'][:10]}" in run("status").stdout
    assert "is frozen by hana" in refused("trigger", "sim")
    assert as_json("unfreeze", "sim", "--why", "done")["changed"]
    assert not as_json("unfreeze", "sim", "--why", "done")["changed"]
    assert as_json("status")[0]["frozen"] is None
    assert [row.kind for row in SqlLedger(line.ledger_url).read("line/sim")] == ["adopted", "frozen", "unfrozen"]


def end_cycle(ledger: SqlLedger) -> None:
    """End the line's first cycle, as the service does."""
    noted = CycleEnd(state=State.CANCELLED, reason="a test", evaluated=False)
    rows = [
        Append(stream="cycle/sim/0001", after=1, rows=(row_of("ended", Reason(reason="a test"), "cancelled"),)),
        Append(stream="line/sim", after=2, rows=(row_of("cycle_ended", noted, "cycle/sim/0001"),)),
    ]
    ledger.append(rows, None, datetime.now(UTC))


@pytest.mark.slow
def test_trigger_and_retry_open_cycles_and_record_who_asked(line: Home, tmp_path: Path) -> None:
    opened = as_json("trigger", "sim", "--why", "new labels", "--by", "hana")
    assert opened == {"cycle": "cycle/sim/0001", "reason": "triggered by hana"}
    ledger = SqlLedger(line.ledger_url)
    data = ledger.read("cycle/sim/0001")[0].data
    assert (data["reason"], data["actor"]) == ("triggered by hana: new labels", "hana")
    for command in (["trigger", "sim"], ["retry", "sim/1"]):
        with pytest.raises(Rejected, match="cycle/sim/0001 is still open"):
            raise CliRunner().invoke(cli, command).exception  # type: ignore[misc]
    end_cycle(ledger)
    (tmp_path / "moved.toml").write_text(LOOP)
    (tmp_path / "loop.toml").unlink()
    assert "does not exist; if it was moved, run `ratchet takeover" in refused("retry", "sim/1")
    as_json("takeover", "moved.toml", "--why", "moved", "--by", "ben")
    again = as_json("retry", "sim/1", "--by", "ben")
    assert again == {"cycle": "cycle/sim/0002", "reason": "retry of 1"}
    assert ledger.read("line/sim")[-1].data["actor"] == "ben"
    other = LOOP.replace('name = "sim"', 'name = "other"', 1)
    (tmp_path / "other.toml").write_text(other)
    assert "defines line 'other'" in refused("retry", "sim/1", "--loop", "other.toml")


def test_init_prints_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert as_json("init", "mine.toml", "--line", "ui") == {"path": "mine.toml", "line": "ui"}
    assert isinstance(CliRunner().invoke(cli, ["init", "mine.toml"]).exception, ConfigError)


def test_tokens_print_json(line: Home) -> None:
    made = as_json("token", "add", "loop.toml", "review", "--name", "ann")
    assert Path(made["file"]).exists()
    assert as_json("token", "rotate", "loop.toml", "ann")["name"] == "ann"
    assert as_json("token", "revoke", "loop.toml", "ann", "--old") == {"name": "ann", "revoked": "old"}


@pytest.mark.slow
def test_check_says_what_to_do_about_a_missing_model_of_names(line: Home, tmp_path: Path) -> None:
    loop = tmp_path / "loop.toml"
    loop.write_text(LOOP + '[privacy.ner]\nmodels = { en = "xx_no_such_model" }\n')
    said = refused("check", loop)
    assert "privacy.ner" in said
    assert "python -m spacy download xx_no_such_model" in said or "install ratchet[presidio]" in said


def test_check_warns_if_most_prompts_of_the_newest_freeze_are_near_duplicates(
    line: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = SimulatedLine(Scenario(seed=1))
    snapshot.live()
    frozen, cluster = snapshot.view().result(FreezeResult), PromptGroup(prompts=80, of=100, side="held")
    crowded = frozen.model_copy(update={"snapshot": frozen.snapshot.model_copy(update={"largest_cluster": cluster})})
    monkeypatch.setattr("ratchet.flows.cli.setup.evidence_check._cycles", lambda context: [knowing(crowded)])
    monkeypatch.setattr("ratchet.flows.cli.setup.evidence_check._visible_gains", lambda context: iter(()))
    [warning] = [one for one in as_json("check", tmp_path / "loop.toml")["findings"] if one["about"] == "prompts"]
    assert warning["level"] == "warning"
    assert "80 of 100 prompts" in warning["text"]


@pytest.mark.parametrize(
    ("prompts", "text"),
    [
        (5, "5 development prompts of 10: runs train for three passes and are not measured"),
        (12, "differ by about 0.16 (one standard error); a search over recipes needs 20"),
        (30, "30 development prompts tell models apart that differ by about 0.10 (one standard error)"),
    ],
)
def test_check_says_what_the_development_prompts_can_tell(
    line: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompts: int, text: str
) -> None:
    planned = plan_result(development_prompts=prompts)
    monkeypatch.setattr("ratchet.flows.cli.setup.evidence_check._cycles", lambda context: [knowing(planned)])
    monkeypatch.setattr("ratchet.flows.cli.setup.evidence_check._visible_gains", lambda context: iter(()))
    [note] = [one for one in as_json("check", tmp_path / "loop.toml")["findings"] if one["about"] == "training"]
    assert note["text"].endswith(text)


def test_check_warns_of_missing_gpus_and_says_what_the_gate_sees(line: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = tmp_path / "loop.toml"
    loop.write_text(LOOP + "[training]\ngpus = 8\n")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    found = as_json("check", loop)
    warning, no_job = [one for one in found["findings"] if one["level"] == "warning"]
    assert found["ok"]
    assert (warning["about"], no_job["about"]) == ("training.gpus", "training.grpo")
    assert "no job can run: training.gpus = 8 on 1 nodes: grpo on TRL uses at most one GPU" in no_job["text"]
    assert "8 GPUs are asked for, but this machine has no NVIDIA GPU" in warning["text"]
    texts = [one["text"] for one in found["findings"]]
    assert "with 50 prompts the gate only sees gains above 0.24; 300 prompts: 0.10; 1,000 prompts: 0.05; 3,000 prompts: 0.03" in texts
    program = tmp_path / "bin" / "nvidia-smi"
    program.write_text('#!/bin/sh\nfor n in 0 1 2 3 4 5 6 7; do echo "GPU $n: NVIDIA H100"; done\n')
    program.chmod(0o755)
    assert [one for one in as_json("check", loop)["findings"] if one["level"] == "warning"] == [no_job]
    loop.write_text(LOOP + "[gate]\nmin_effect = 0.1\nmin_prompts = 400\n")
    shown = run("check", loop)
    assert "reading" in shown.stderr
    assert "gains above 0.18; 1,000 prompts: 0.15" in " ".join(shown.stdout.split())


# Completion


def completions(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """Return what the shell would offer for the last word."""
    from click.shell_completion import ShellComplete

    return [item.value for item in ShellComplete(cli, {}, "ratchet", "_RATCHET_COMPLETE").get_completions(list(words[:-1]), words[-1])]


def test_lines_cycles_versions_and_requests_are_completed(tmp_path: Path, reads: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert completions(monkeypatch, "un") == ["unfreeze"]
    assert completions(monkeypatch, "freeze", "") == ["sim"]
    assert completions(monkeypatch, "logs", "sim/") == ["sim/0001"]
    assert completions(monkeypatch, "diff", "sim/0", "sim/") == ["sim/0", "sim/1"]
    assert completions(monkeypatch, "approve", "") == [], "all requests are answered"
    sim = SimulatedLine(Scenario(seed=1))
    cycle = open_cycle(sim.context, "a test")
    while not sim.ledger.streams("approval/"):
        advance(cycle, sim.context)
    monkeypatch.setenv("RATCHET_HOME", str(home_of(sim, tmp_path).root))
    assert completions(monkeypatch, "approve", "") == ["sim/0001/training"]


def test_completion_creates_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert completions(monkeypatch, "approve", "") == []
    assert completions(monkeypatch, "freeze", "loops/") == ["loops/"], "the shell completes the path"
    assert list(tmp_path.iterdir()) == []


def test_loop_files_are_completed_beside_the_lines(line: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("pyproject.toml").write_text('[project]\nname = "x"\n')
    assert completions(monkeypatch, "rollback", "") == ["sim", "loop.toml"]
    assert completions(monkeypatch, "ingest", "lo") == ["loop.toml"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_this_program(shell: str) -> None:
    assert f"_RATCHET_COMPLETE={shell}_complete" in run("completion", shell).stdout
