"""A teacher answers the questions that a line gets wrong: measured by slice, paid once, and trained on only where it agrees with people."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.ids import root_id, teacher_stream
from ratchet.contracts.steps import EvaluateResult, FreezeResult, State
from ratchet.flows.composition.artifacts import open_artifacts
from ratchet.flows.composition.installation import Installation
from ratchet.flows.composition.ports import open_ledger
from ratchet.flows.config.home import Home
from ratchet.flows.core.asking.parquet_rows import rows_of
from ratchet.materializer.training_sets.holdout import held_out
from tests import command, toy_line
from tests.e2e.faq_line import LOOP, TEACHER, question, right, traffic
from tests.judge_stub import Stub, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def confident(body: dict[str, Any]) -> str:
    """A teacher that is right about forms, and confidently wrong about keys."""
    asked = body["messages"][-1]["content"]
    return right(asked) if asked.startswith("form") else "on hook 1"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that runs a command in the installation of the test."""
    monkeypatch.setenv("TEACHER_KEY", "k-secret")
    home = Home(tmp_path / "home")

    def ratchet(*arguments: object) -> str:
        done = command.ratchet(*map(str, arguments), home=home.root)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    return ratchet


def trained_on(run: Callable[..., str], loop: Path, out: Path) -> list[dict[str, Any]]:
    """Export the training set of now, and return its demonstrations."""
    run("dataset", "export", loop, "--now", "--format", "trl", "--out", out)
    return [json.loads(line) for line in (out / "sft.jsonl").read_text().splitlines()]


def test_a_teacher_is_trained_on_where_it_agrees_with_people_and_caught_where_it_is_confidently_wrong(
    tmp_path: Path, run: Callable[..., str]
) -> None:
    """The rule that catches it: the lower bound of the agreement is measured in each slice alone, and nothing is borrowed."""
    traffic(tmp_path)
    loop = tmp_path / "faq.toml"
    with serving(Stub(confident, key="k-secret")) as stub:
        loop.write_text(LOOP + TEACHER.format(url=stub.url))
        run("ingest", loop)
        dry = json.loads(run("teacher", "ask", loop, "--dry-run", "--json"))
        assert stub.requests == 0, "a dry run sends nothing"
        assert dry["requests"] == len(dry["questions"]) > 100
        assert {one["slice"] for one in dry["questions"] if one["measures"]} == {"form", "key"}
        told = json.loads(run("teacher", "ask", loop, "--json"))
        assert told["outcomes"] == {"answered": dry["requests"]}
        assert stub.requests == dry["requests"]
        assert 0 < told["cost"] < dry["highest_cost"]
        assert told["kept"] == dry["requests"]
        assert told["terms"]["accepted_by"] == "Ada Example"
        sent = {one["messages"][-1]["content"] for one in stub.bodies}
        again = json.loads(run("teacher", "ask", loop, "--json"))
        more = {one["messages"][-1]["content"] for one in stub.bodies[dry["requests"] :]}
        assert not more & sent, "no question is paid for twice"
        assert all(one.startswith("form") for one in more), "and none is asked in the slice that was found wrong"
        found = json.loads(run("teacher", "results", loop, "--json"))
    beliefs = {one["slice"]: one for one in found["teachers"]}
    assert beliefs["form"]["used"]
    assert beliefs["form"]["believed"] > 10
    assert (beliefs["key"]["used"], beliefs["key"]["believed"], beliefs["key"]["refuted"]) == (False, 0, True)
    assert found["rounds"][0]["stopped"] == ""
    assert again["left_out"]["the teacher's agreement with people is too low on their slice"] > 0

    with_teacher = trained_on(run, loop, tmp_path / "with")
    answers = {json.dumps(row) for row in with_teacher}
    assert sum("drawer" in one for one in answers) > 20
    assert not any("on hook 1" in one for one in answers), "nothing of the wrong slice is trained on"
    loop.write_text(LOOP)
    without = trained_on(run, loop, tmp_path / "without")
    assert len(without) == 0, "the line without a teacher has nothing to imitate"

    loop.write_text(LOOP + TEACHER.format(url=stub.url))
    gone = next(one for one in sent if one == question(70, "form"))
    told = run("erase", "--user", "uform70", "--by", "ada")
    assert f"the teacher at {stub.url}" in " ".join(told.split())
    keys = [row.data["answer"] for row in open_ledger(Home(tmp_path / "home")).read(teacher_stream("faq")) if row.data.get("answer")]
    left = [row for key in keys for row in rows_of(open_artifacts(Home(tmp_path / "home")).get(key), ["prompt", "answer"])]
    assert len(left) == len(keys) - 1
    assert not any(gone in row["prompt"] for row in left), "the stored answer to the erased question is gone, too"
    for path in (tmp_path / "home").rglob("*"):
        assert not path.is_file() or b"k-secret" not in path.read_bytes(), f"{path} has the key"


def test_held_out_questions_are_never_sent(tmp_path: Path, run: Callable[..., str]) -> None:
    traffic(tmp_path)
    loop = tmp_path / "faq.toml"
    with serving(Stub(confident, key="k-secret")) as stub:
        settings = TEACHER.format(url=stub.url).replace("max_tokens = 100", "max_tokens = 100\nquestions = 500\nmeasure = 500")
        loop.write_text(LOOP + settings)
        run("ingest", loop)
        run("teacher", "ask", loop)
    sent = [one["messages"] for one in stub.bodies]
    assert len(sent) > 100
    assert not any(held_out(root_id(messages), "ratchet", 0.2) for messages in sent)


@pytest.mark.parametrize("third_party", [None, False])
def test_consent_to_training_is_no_consent_to_sending(tmp_path: Path, run: Callable[..., str], third_party: bool | None) -> None:
    traffic(tmp_path, third_party)
    loop = tmp_path / "faq.toml"
    with serving(Stub(confident)) as stub:
        loop.write_text(LOOP + TEACHER.format(url=stub.url))
        run("ingest", loop)
        told = json.loads(run("teacher", "ask", loop, "--json"))
    assert stub.requests == 0
    assert (told["asked"], told["measuring"]) == (0, 0)
    assert list(told["left_out"]) == ["no user consents to sending them to a third party"]


@pytest.mark.soak
def test_a_cycle_asks_before_its_snapshot_and_gains_what_a_line_without_a_teacher_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model answers every question with "no", and the right answer is "yes". Only a third of the questions have a known answer."""
    monkeypatch.setenv("TEACHER_KEY", "k-secret")
    model = toy_line.write_model(tmp_path)
    with serving(Stub(lambda _: "yes", key="k-secret")) as stub:
        cycles = {}
        for name, section in (("taught", TEACHER.format(url=stub.url)), ("alone", "")):
            home, loop = Home(tmp_path / f"home-{name}"), toy_line.write_loop(tmp_path, name)
            text = loop.read_text().replace("references_are_answers = true", "references_are_answers = false")
            loop.write_text(
                text.replace('[approvals.rollout]\nmode = "auto"', '[approvals.rollout]\nmode = "person"\nexpires = 3') + section
            )
            fixed = {"timestamp": "2026-10-01T00:00:00Z", "response": "no", "consent": True, "consent_third_party": True, "feedback": 0}
            rows = [
                {"id": str(n), "messages": text, **fixed} | ({"reference": "yes"} if n % 3 == 0 else {})
                for n, text in enumerate(toy_line.TRAINING)
            ]
            (tmp_path / f"traces-{name}" / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            toy_line.ratchet(home, "adopt", loop, model, "--by", "ada")
            toy_line.ratchet(home, "ingest", loop)
            asked = stub.requests
            planned = json.loads(toy_line.ratchet(home, "plan", loop, "--no-probe", "--json"))
            assert stub.requests == asked, "a plan sends nothing"
            assert (planned["teacher"] is None) == (name == "alone")
            command.ratchet("run", loop, "--no-ingest", "--wait", "1200", home=home.root, timeout=1500)
            cycles[name] = (home, Installation(home).cycle(name, 1))
            toy_line.ratchet(home, "serve", "--stop", loop)
    home, taught = cycles["taught"]
    assert taught is not None
    asked_by_cycle = taught.result(FreezeResult).teacher
    assert asked_by_cycle is not None
    assert stub.requests == asked_by_cycle.asked + asked_by_cycle.measuring > 50
    assert taught.result(FreezeResult).snapshot.teachers[0].believed > 20
    report = taught.result(EvaluateResult).report
    overall = report.comparison("overall")
    assert overall is not None
    assert overall.difference.low > 0.5, overall
    alone = cycles["alone"][1]
    assert alone is not None
    assert alone.state is State.NOT_TRAINED, "without the teacher, nothing is known that a training could use"
    told = toy_line.ratchet(home, "explain", "taught/1")
    assert "Teacher" in told
    assert "count because of the agreement" in " ".join(told.split())
    assert "accepted by Ada Example" in " ".join(told.split())
