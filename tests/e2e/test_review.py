"""Reviewers answer the questions that a line gets wrong: exported, answered by hand and in Label Studio's form, taken in, and used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.flows.config.home import Home
from tests import command
from tests.e2e.faq_line import LOOP

pytestmark = [pytest.mark.slow]


def traffic(folder: Path) -> None:
    """Write forty questions; the first ten are asked four times as often, and every answer is disliked but those of the last ten."""
    rows: list[dict[str, Any]] = []
    for question in range(40):
        for asked in range(8 if question < 10 else 2):
            rows.append(
                {
                    "id": f"t{question}-{asked}",
                    "timestamp": f"2026-10-01T00:{asked:02d}:00Z",
                    "user_id": f"u{question}-{asked}",
                    "messages": [{"role": "user", "content": f"Where is the {question}th form of our office kept?"}],
                    "response": "in the cellar",
                    "feedback": 1 if question >= 30 else 0,
                    "slice": "rare" if question >= 10 else "often",
                    "consent": True,
                }
            )
    (folder / "traces").mkdir()
    (folder / "traces" / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_questions_go_out_and_answers_become_references(tmp_path: Path) -> None:
    home, loop = Home(tmp_path / "home"), tmp_path / "faq.toml"
    loop.write_text(LOOP)
    traffic(tmp_path)

    def ratchet(*arguments: object) -> str:
        done = command.ratchet(*map(str, arguments), home=home.root)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    ratchet("ingest", loop)
    ratchet("review", "export", loop, "--out", tmp_path / "first", "--count", 12, "--by", "ada")
    lines = (tmp_path / "first" / "questions.jsonl").read_text().splitlines()
    questions = [json.loads(line) for line in lines]
    assert len(questions) == 12
    assert [one["requests"] for one in questions[:5]] == [8] * 5, "frequent questions come first"
    assert all(one["wrong"] == 1.0 and one["answers"][0]["text"] == "in the cellar" for one in questions)
    assert sum(one["expected_gain"] for one in questions) < 1
    assert "review jsonl" in ratchet("dataset", "list", loop), "the export is recorded"

    for number, one in enumerate(questions[:8]):
        one |= {"answer": f"in drawer {number}", "reviewer": "bert"}
    second = [{**one, "answer": "In  Drawer 0" if n == 0 else "elsewhere", "reviewer": "cleo"} for n, one in enumerate(questions[:2])]
    file = tmp_path / "first" / "questions.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in [*questions, *second]))
    told = ratchet("review", "import", loop, file, "--by", "ada")
    assert "answers: 10, of them new: 10; reviewers: 2; questions without an answer: 4" in told
    assert "agree in 1 of 2 pairs (50%)" in told
    assert "answers: 10, of them new: 0; reviewers: 2" in ratchet("review", "import", loop, file, "--by", "ada"), "again changes nothing"

    asked = {one["review"] for one in questions}
    forged = [
        {"review": "0" * 64, "trace": "log/t24-0", "answer": "BIASED", "reviewer": "eve"},
        {**questions[8], "answer": "1", "reviewer": "eve"},
    ]
    (tmp_path / "forged.jsonl").write_text("".join(json.dumps(one) + "\n" for one in forged))
    told = ratchet("review", "import", loop, tmp_path / "forged.jsonl", "--by", "eve")
    assert "answers: 1, of them new: 1; reviewers: 1" in told
    assert "not taken in: answers to 1 questions that are held out, golden, erased or unknown: 000000000000" in told
    (tmp_path / "forged.jsonl").write_text(json.dumps(forged[0]) + "\n")
    refused = command.ratchet("review", "import", loop, tmp_path / "forged.jsonl", home=home.root)
    assert refused.returncode != 0
    assert "none of its 1 questions is among those that faq can be taught" in refused.stderr
    (tmp_path / "first" / "gains.json").write_text(json.dumps({next(iter(asked)): float("nan")}))
    refused = command.ratchet("review", "import", loop, file, home=home.root)
    assert refused.returncode != 0
    assert "has a gain that is no share" in refused.stderr

    ratchet("review", "export", loop, "--out", tmp_path / "second", "--format", "label-studio", "--by", "ada")
    tasks = json.loads((tmp_path / "second" / "tasks.json").read_text())
    again = {task["data"]["review"] for task in tasks}
    agreed = {one["review"] for one in questions[2:8]}
    assert not again & agreed, "what is answered is not asked again"
    first = tasks[0]
    area = {"type": "textarea", "from_name": "answer", "to_name": "dialogue", "value": {"text": ["on the shelf"]}}
    annotation = {"id": 7, "completed_by": {"id": 3, "email": "dora@example.org"}, "created_at": "2026-10-03T10:00:00Z", "result": [area]}
    done = [
        {"id": 1, "data": first["data"], "annotations": [annotation, {**annotation, "was_cancelled": True}]},
        {"id": 2, "data": tasks[1]["data"]},
    ]
    (tmp_path / "second" / "export.json").write_text(json.dumps(done))
    told = ratchet("review", "import", loop, tmp_path / "second" / "export.json", "--by", "ada")
    assert "answers: 1, of them new: 1; reviewers: 1; questions without an answer: 1" in told

    found = json.loads(command.ratchet("review", "results", loop, "--json", home=home.root).stdout)
    assert [one["answers"] for one in found["imports"]] == [10, 1, 1]
    assert found["imports"][0]["expected"] > 0
    reviewed = sum(one["reviewed"]["requests"] for one in found["versions"])
    assert reviewed > 0
    exported = command.ratchet("dataset", "export", loop, "--now", "--format", "trl", "--out", tmp_path / "set", "--json", home=home.root)
    rows = json.loads(exported.stdout)["rows"]
    assert rows["prompts.jsonl"] + rows["development.jsonl"] == 10, "all ten answered questions have a right answer now"
    assert rows["sft.jsonl"] == 0, "a reference is a result, unless the loop file says that it is a whole answer"
    loop.write_text(LOOP + "[snapshot]\nreferences_are_answers = true\n")
    exported = command.ratchet("dataset", "export", loop, "--now", "--format", "trl", "--out", tmp_path / "more", "--json", home=home.root)
    assert json.loads(exported.stdout)["rows"]["sft.jsonl"] >= 6, "and then it is trained on"
    for path in home.root.rglob("*"):
        assert not path.is_file() or b"dora@example.org" not in path.read_bytes(), f"{path} has the name of a reviewer in clear"
