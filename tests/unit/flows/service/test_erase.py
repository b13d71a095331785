"""Tests of erasures: no byte of the erased people is left, everybody else's data are complete, and a crash at any point is repaired."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from ratchet.contracts.data.senders import Role, Sender
from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.ids import line_stream
from ratchet.contracts.steps import State, Step
from ratchet.flows.cli.main import cli
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config import variables
from ratchet.flows.engine.ingest import ingest
from ratchet.flows.engine.line import adopt, open_cycle
from ratchet.flows.report.page import write_page
from ratchet.flows.service.erase import LineEraser, People, erase_people, pseudonyms_of
from ratchet.flows.service.receipts import Receipt
from ratchet.materializer.erasure.lake_rows import Target
from ratchet.materializer.lake.tables import Lake
from ratchet.materializer.receive.spool import FolderSpool
from ratchet.runtime.jobs.job_protocol import plan_folder
from ratchet.runtime.secrets.keyring import add_key
from tests.command import ROOT, environment
from tests.markers import LINE, LOOP, SHOP, fill, install, marker, marks_in, opened, perform, planned, promoted, user
from tests.unit.materializer.records import evaluation, logs, span, spans


def erase(installation: Installation, *people: int) -> Receipt:
    return erase_people(installation, pseudonyms_of(installation, map(user, people), ()))


def traces(installation: Installation) -> pl.DataFrame:
    return Lake(installation.home.lake(LINE)).scan("traces").sort("source", "id")


@pytest.mark.slow
def test_no_file_contains_a_byte_of_the_erased_people_and_the_others_lose_nothing(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 120)
    home = installation.home
    version = promoted(context, home)
    write_page(installation.ledger, home, LINE, home.reports / "shop.html")
    fill(home, range(0, 120, 10))  # again, and not ingested yet
    lake = Lake(home.lake(LINE))
    gone, others = set(range(100)), set(range(100, 120))
    assert marks_in(home.root).keys() == gone | others
    before = {name: lake.scan(name) for name in ("traces", "feedback")}  # type: ignore[arg-type]
    context.sources[0].batches()

    receipt = erase(installation, *gone)

    assert marks_in(home.root).keys() == others
    kept = before["traces"].filter(pl.col("user").is_in(pseudonyms_of(installation, map(user, others), ()).users))
    assert traces(installation).equals(kept.sort("source", "id"))
    # Everybody's corrections of the next person's trace went with that person, and nothing else.
    assert len(lake.scan("feedback")) == 3 * len(others)
    [line] = receipt.lines
    assert (line.rows["traces"], line.rows["feedback"]) == (200, 301 - 1)
    assert line.rows["artifacts"] > 0
    assert [(one.tag, one.champion) for one in line.recalled] == [(version.tag, True)]
    assert not any(user(n) in json.dumps(receipt.model_dump(mode="json")) for n in gone)
    assert receipt.finished is not None
    assert erase(installation, *gone) == receipt

    fill(home, range(50))  # what comes later is not stored
    report = ingest(context)
    assert (report.traces.adds_up, report.traces.reasons["erased"], report.feedback.adds_up) == (True, 100, True)
    assert marks_in(home.root).keys() == others

    cycle = planned(opened(installation, tmp_path), home)  # the line goes on, from the model before the recalled one
    assert (cycle.start.number, cycle.baseline.number, cycle.champion.tag) == (0, 0, version.tag)
    assert marks_in(home.root).keys() == others


def stated(installation: Installation, sender: Sender, *people: int) -> None:
    """Deliver a consent of these people, which is newer than everything before."""
    spool = FolderSpool(installation.home.spool(LINE))
    for n in people:
        said = evaluation("user_consent", 1.0, at=time.time_ns(), user__id=user(n)) | {"eventName": "gen_ai.evaluation.result"}
        spool.put_json(sender, json.dumps(logs(said)).encode())


def newly_asked(installation: Installation, n: int, number: int) -> None:
    """Deliver a new trace of a user, with consent."""
    body = spans(span(number, f"{marker(n)} why?", f"{marker(n)} because", at=time.time_ns(), user__id=user(n)))
    FolderSpool(installation.home.spool(LINE)).put_json(SHOP, json.dumps(body).encode())


@pytest.mark.slow
def test_a_late_consent_of_the_application_brings_nothing_of_an_erased_person_back(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 8)
    home = installation.home
    erase(installation, 0, 1)
    stated(installation, SHOP, 0, 1)
    ingest(context)
    fill(home, range(2))  # the old records again, after the consent
    newly_asked(installation, 0, 900)
    report = ingest(context)
    assert report.traces.reasons["erased"] == 5
    assert report.traces.kept == 0
    assert marks_in(home.root).keys() == set(range(2, 8))
    planned(opened(installation, tmp_path), home)
    assert marks_in(home.root).keys() == set(range(2, 8))


@pytest.mark.slow
def test_after_a_consent_of_the_operator_new_records_of_an_erased_person_are_stored_and_old_traces_are_not(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 8)
    home = installation.home
    before = len(traces(installation))
    erase(installation, 0, 1)
    stated(installation, Sender(name="ops", roles=(Role.OPERATOR,)), 0)
    ingest(context)
    fill(home, range(2))
    report = ingest(context)
    assert (report.traces.kept, report.traces.duplicate, report.traces.reasons["erased"]) == (0, 2, 2)
    assert marks_in(home.lake(LINE).folder / "warehouse" / "ratchet" / "traces").keys() == set(range(2, 8))
    newly_asked(installation, 0, 900)
    newly_asked(installation, 1, 901)
    assert ingest(context).traces.kept == 1
    assert 1 not in marks_in(home.lake(LINE).folder)
    assert len(traces(installation)) == before - 4 + 1


class Killed(BaseException):
    """Ends the erasure as the death of its process does, except that leases are released."""


class Death:
    """Ends the erasure before its step number `after`; never if it is None."""

    def __init__(self, after: int | None) -> None:
        self._left = after

    def __call__(self, _step: str) -> None:
        if self._left == 0:
            raise Killed
        self._left = None if self._left is None else self._left - 1


def erase_with_deaths(installation: Installation, people: People, deadly: bool) -> tuple[Receipt, int]:
    """Erase people. If `deadly`, the first run dies at its first step, the next one at its second, and so on. Return the deaths, too."""
    deaths = 0
    while True:
        try:
            return erase_people(Installation(installation.home), people, Death(deaths if deadly else None)), deaths
        except Killed:
            deaths += 1


@pytest.mark.slow
def test_an_erasure_that_dies_at_each_step_in_turn_removes_what_one_without_deaths_removes(tmp_path: Path) -> None:
    found = []
    for name, deadly in (("calm", False), ("deadly", True)):
        installation, context = install(tmp_path / name, 12)
        promoted(context, installation.home)
        planned(opened(installation, tmp_path / name), installation.home)
        receipt, deaths = erase_with_deaths(installation, pseudonyms_of(installation, map(user, range(4)), ()), deadly)
        assert (deaths > 12) == deadly
        assert marks_in(installation.home.root).keys() == set(range(4, 12))
        assert installation.cycles(LINE)[-1].state is State.RECALLED
        assert not installation.home.erasing(LINE).exists()
        found.append([(one.rows, len(one.recalled), one.cycle) for one in receipt.lines])
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_dry_run_changes_no_file_and_counts_what_an_erasure_removes(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 8)
    promoted(context, installation.home)
    people = pseudonyms_of(installation, [user(0), user(1)], ())

    def files() -> dict[Path, int]:
        kinds = (".parquet", ".json", ".avro", "")  # a database is opened and closed by each reader
        return {path: path.stat().st_mtime_ns for path in installation.home.root.rglob("*") if path.is_file() and path.suffix in kinds}

    before = files()
    preview = LineEraser(installation, LINE, Target(people.users, people.sessions)).preview()
    assert files() == before
    done = erase_people(installation, people).lines[0]
    assert preview.rows == {name: count for name, count in done.rows.items() if count}
    assert [one.tag for one in preview.recalled] == [one.tag for one in done.recalled]


@pytest.mark.slow
def test_a_cycle_whose_plan_has_erased_rows_ends_and_its_run_folder_goes(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 8)
    cycle = planned(context, installation.home)
    assert cycle.plan is not None
    folder = installation.home.jobs(LINE) / plan_folder(cycle.plan.id)
    assert folder.exists()
    receipt = erase(installation, 0)
    ended = installation.cycles(LINE)[-1]
    assert (ended.id, ended.state) == (cycle.id, State.RECALLED)
    assert receipt.id[:16] in ended.reason
    assert receipt.lines[0].cycle == cycle.id
    assert not folder.exists()
    following = planned(opened(installation, tmp_path), installation.home)
    assert following.number == 2


@pytest.mark.slow
def test_a_cycle_that_has_no_plan_yet_goes_on_without_the_erased_rows(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 8)
    cycle = perform(context, open_cycle(context, "test"), Step.FREEZE, Step.PROBE)
    erase(installation, 0, 1)
    assert installation.cycles(LINE)[-1].state is State.PROBED
    done = perform(opened(installation, tmp_path), cycle.id, Step.PLAN)
    assert done.plan is not None
    assert marks_in(installation.home.root).keys() == set(range(2, 8))


@pytest.mark.slow
def test_what_was_trained_from_a_recalled_version_is_recalled_and_no_cycle_uses_it(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 8)
    first = promoted(context, installation.home, "1")
    second = promoted(context, installation.home, "2")
    erase(installation, 0)
    line = installation.line(LINE)
    assert line.recalled.keys() == {first.tag, second.tag}
    assert line.champion == second  # it serves until the operator decides
    opened_again = installation.ledger.read(open_cycle(opened(installation, tmp_path), "test"))[0].data
    assert (opened_again["start"], opened_again["baseline"]) == (line.base.model_dump(mode="json"),) * 2  # type: ignore[union-attr]
    erase(installation, 0)
    rows = [row.kind for row in installation.ledger.read(line_stream(LINE)) if row.kind.startswith("recall")]
    assert rows == ["recalled", "recalled"]


@pytest.mark.slow
def test_a_plan_whose_artifacts_were_filtered_before_is_found_by_a_later_erasure(tmp_path: Path) -> None:
    """Its rows name the digests from before the first erasure, which removed the data of somebody else without a recall."""
    installation, context = install(tmp_path, 8)
    version = promoted(context, installation.home)
    withdrawn = pseudonyms_of(installation, [user(0)], ()).users
    eraser = LineEraser(installation, LINE, Target(withdrawn))
    rows = eraser._plan("test")
    for key in rows.artifacts:
        eraser._rewrite(key, rows.marks)
    eraser.forget()
    assert installation.line(LINE).recalled == {}
    receipt = erase(installation, 1)
    assert [one.tag for one in receipt.lines[0].recalled] == [version.tag]


@pytest.mark.slow
def test_the_end_of_an_erasure_leaves_the_marks_of_another_one_that_has_begun_meanwhile(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 6)
    promoted(context, installation.home)
    first, second = (pseudonyms_of(installation, [user(number)], ()) for number in (0, 1))

    def killed(step: str) -> None:
        if step == "artifact":
            raise Killed

    def begin_another(step: str) -> None:
        if step == "receipt is stored":  # the first one holds no lease here
            with pytest.raises(Killed):
                erase_people(installation, second, killed)

    erase_people(installation, first, begin_another)
    with pytest.raises(Retryable, match="an erasure of people has begun"):
        LineEraser(installation, LINE, Target(withdrawn=True)).run("a collection")
    erase_people(installation, second)
    assert marks_in(installation.home.root).keys() == set(range(2, 6))


@pytest.mark.slow
def test_two_erasures_of_the_same_people_are_in_one_receipt(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 6)
    promoted(context, installation.home)
    people, done = pseudonyms_of(installation, [user(0)], ()), list[Receipt]()

    def erase_in_between(step: str) -> None:
        if step == "receipt" and not done:
            done.append(erase_people(installation, people))

    receipt = erase_people(installation, people, erase_in_between)
    assert receipt.lines[0].rows == done[0].lines[0].rows
    assert receipt.lines[0].rows["traces"] > 0


@pytest.mark.slow
def test_texts_that_somebody_else_has_too_stay_and_a_person_without_rows_gets_an_empty_receipt(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 8)
    version = promoted(context, installation.home)
    receipt = erase_people(installation, pseudonyms_of(installation, ["nobody"], ()))
    assert not any(receipt.lines[0].rows.values())
    assert receipt.lines[0].recalled == ()
    assert version.tag not in installation.line(LINE).recalled


@pytest.mark.slow
def test_the_command_reads_a_file_of_users_and_never_shows_their_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installation, context = install(tmp_path, 8)
    promoted(context, installation.home)
    monkeypatch.setenv(variables.HOME, str(installation.home.root))
    listed = tmp_path / "users.txt"
    listed.write_text(f"\ufeff{user(0)} \r\n\n{user(1)}\nnobody\n", encoding="utf-8")
    runner = CliRunner()
    tried = runner.invoke(cli, ["erase", "--users-file", str(listed), "--dry-run"], catch_exceptions=False)
    assert (tried.exit_code, marks_in(installation.home.root).keys()) == (0, set(range(8)))
    assert "none: check its spelling" in tried.output
    done = runner.invoke(cli, ["erase", "--users-file", str(listed), "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)["ids"]
    assert found["users.txt:1"] == found["users.txt:3"] > 0 == found["users.txt:4"]
    again = runner.invoke(cli, ["erase", "--users-file", str(listed), "--json"], catch_exceptions=False)
    assert json.loads(again.stdout)["ids"] == found, "a repetition shows what the first run found"
    assert json.loads(done.stdout)["lines"][0]["rows"]["traces"] == 4
    assert user(0) not in done.output
    assert marks_in(installation.home.root).keys() == set(range(2, 8))
    shown = runner.invoke(cli, ["status"], catch_exceptions=False)
    assert "is recalled and still serves" in shown.output
    explained = runner.invoke(cli, ["explain"], catch_exceptions=False)
    assert "No further version is trained from it" in explained.output


@pytest.mark.slow
def test_all_versions_of_the_pseudonyms_key_are_taken(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 2)
    add_key(installation.home.user_keys, context.clock.now())
    fill(installation.home, range(2, 4))
    ingest(opened(Installation(installation.home), tmp_path))
    erase(Installation(installation.home), 0, 2)
    assert marks_in(installation.home.root).keys() == {1, 3}


@pytest.mark.slow
def test_without_the_key_of_the_pseudonyms_nothing_is_called_erased(tmp_path: Path) -> None:
    installation, _ = install(tmp_path, 2)
    installation.home.user_keys.unlink()
    with pytest.raises(ConfigError, match="restore it from a backup"):
        erase(installation, 0)
    assert marks_in(installation.home.root).keys() == {0, 1}


@pytest.mark.slow
def test_a_session_is_erased_without_the_other_sessions_of_its_user(tmp_path: Path) -> None:
    installation, _ = install(tmp_path, 3)
    receipt = erase_people(installation, pseudonyms_of(installation, (), [f"session of {user(1)}"]))
    assert receipt.lines[0].rows["traces"] == 2
    assert len(traces(installation)) == 4


@pytest.mark.slow
def test_the_key_of_mirrored_prompts_is_deleted_so_that_their_rows_name_nobody(tmp_path: Path) -> None:
    installation, _ = install(tmp_path, 2)
    key = installation.home.lake(LINE).folder / "mirror.json"
    key.write_text("{}")
    erase(installation, 1)
    assert not key.exists()


@pytest.mark.slow
def test_another_line_keeps_rows_with_the_same_texts_and_its_versions(tmp_path: Path) -> None:
    """Artifacts are shared by all lines, and two lines may have got equal texts from different people."""
    installation, context = install(tmp_path, 6)
    (tmp_path / "second.toml").write_text(LOOP.replace('"shop"', '"second"'))
    second = opened(installation, tmp_path, "second.toml")
    adopt(second, tmp_path / "model", "ada")
    fill(installation.home, range(6), "second", lambda n: f"another {n}")
    ingest(second)
    theirs = promoted(second, installation.home, "2")
    ours = promoted(context, installation.home, "3")
    erase(installation, 0)
    assert installation.line("shop").recalled.keys() == {ours.tag}
    assert installation.line("second").recalled == {}
    assert theirs == installation.line("second").champion
    assert 0 in marks_in(installation.home.artifacts)
    receipt = erase_people(installation, pseudonyms_of(installation, ["another 0"], ()))
    assert {line.line: line.rows.get("traces", 0) for line in receipt.lines} == {"second": 2, "shop": 0}
    assert marks_in(installation.home.root).get(0) is None


_ERASE = """
import os, signal, sys
from pathlib import Path
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from ratchet.flows.service.erase import erase_people, pseudonyms_of
left = int(sys.argv[2])
def boundary(step):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
installation = Installation(Home(Path(sys.argv[1])))
erase_people(installation, pseudonyms_of(installation, sys.argv[3:], ()), boundary)
"""


@pytest.mark.soak
def test_an_erasure_whose_process_is_killed_at_each_step_is_completed_by_the_next_one(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 8)
    promoted(context, installation.home)
    planned(opened(installation, tmp_path), installation.home)
    for after in range(1, 100):
        command = [sys.executable, "-c", _ERASE, str(installation.home.root), str(after), user(0), user(1)]
        code = subprocess.run(command, cwd=ROOT, env=environment(installation.home.root), check=False).returncode
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert (code, after > 12) == (0, True)
    assert marks_in(installation.home.root).keys() == set(range(2, 8))
    assert installation.cycles(LINE)[-1].state is State.RECALLED
    assert len(traces(installation)) == 12


@pytest.mark.slow
def test_no_compaction_is_under_way_while_rows_and_files_are_deleted(tmp_path: Path) -> None:
    """Its files are no part of the lake yet, and would bring the rows back."""
    installation, _ = install(tmp_path, 4)
    free: dict[str, bool] = {}

    def look(step: str) -> None:
        with Lake(installation.home.lake(LINE)).compacting(wait=False) as is_free:
            free[step] = is_free

    erase_people(installation, pseudonyms_of(installation, [user(0)], ()), look)
    assert (free["lake rows"], free["lake files"]) == (False, False)
    assert free["tombstone"], "ingest and upkeep go on meanwhile"
