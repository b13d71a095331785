"""A teacher answers the questions that a line gets wrong: measured by slice, paid once, and trained on only where it agrees with people."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.ids import root_id
from ratchet.flows.config.home import Home
from ratchet.materializer.training_sets.holdout import held_out
from tests import command
from tests.judge_stub import Stub, serving

pytestmark = [pytest.mark.slow]
LOOP = """
[line]
name = "faq"
served_model = "faq"
[[sources]]
name = "log"
kind = "jsonl"
path = "traces"
[[rewards]]
name = "exact_match"
[[rewards]]
name = "user_feedback"
[holdout]
fraction = 0.2
[trigger]
new_traces = 1
"""
TEACHER = """
[teacher]
url = "{url}"
model = "big"
key_env = "TEACHER_KEY"
region = "eu"
regions = ["eu"]
input_price = 2.0
output_price = 8.0
max_requests = 500
max_cost = 5.0
max_tokens = 100
[teacher.terms]
text = "https://provider.example/terms"
accepted_by = "Ada Example"
accepted_on = 2026-01-15
"""


def right(question: str) -> str:
    """The right answer to a question: forms lie in drawers, and keys hang on hooks."""
    number = int(re.findall(r"\d+", question)[0])
    return f"in drawer {number}" if "form" in question else f"on hook {number}"


def question(number: int, kind: str) -> str:
    """A question that resembles no other one."""
    place = ("harbour", "castle", "meadow", "tunnel", "station", "library", "airport", "garden")[number % 8]
    return f"{kind} {number * 7919} of the {place}, {'abcdefghijklmnop'[number % 16] * 12}: where do I find this {kind}?"


def traffic(folder: Path, third_party: bool | None = True) -> None:
    """Write questions of two slices. Sixty of each have a logged right answer, sixty have none, and every answer is disliked."""
    rows: list[dict[str, Any]] = []
    for kind in ("form", "key"):
        for number in range(120):
            asked = question(number, kind)
            row = {"id": f"{kind}{number}", "timestamp": f"2026-10-01T00:{number % 60:02d}:00Z", "user_id": f"u{kind}{number}"}
            row |= {"messages": [{"role": "user", "content": asked}], "response": "in the cellar", "feedback": 0, "slice": kind}
            row |= {"consent": True} | ({} if third_party is None else {"consent_third_party": third_party})
            rows.append(row | ({"reference": right(asked)} if number < 60 else {}))
    (folder / "traces").mkdir(parents=True)
    (folder / "traces" / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def confident(body: dict[str, Any]) -> str:
    """A teacher that is right about forms, and confidently wrong about keys."""
    asked = body["messages"][-1]["content"]
    return right(asked) if asked.startswith("form") else "on hook 0"


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
    assert not any("on hook 0" in one for one in answers), "nothing of the wrong slice is trained on"
    loop.write_text(LOOP)
    without = trained_on(run, loop, tmp_path / "without")
    assert len(without) == 0, "the line without a teacher has nothing to imitate"
    exported = run("dataset", "list", loop)
    assert "k-secret" not in exported


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
