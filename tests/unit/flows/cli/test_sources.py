"""Tests of `ratchet sources try`, and of what `ingest` and `check` say about files that are not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ratchet.contracts.errors import ConfigError
from ratchet.flows.cli.setup.sources import configured, sources
from ratchet.flows.config.load import load_loop
from tests.command import ratchet
from tests.unit.materializer.receive.langfuse.api_server import KEYS, langfuse_server
from tests.unit.materializer.receive.trial.test_guess import PLACES

OWN = [
    {
        "call_id": f"c{n}",
        "at": f"2026-01-01 00:00:0{n}",
        "question": f"Which, {n}? bob@example.com",
        "answer": "A.",
        "customer": {"id": "u-77"},
        "rating": n % 2,
    }
    for n in range(4)
]


def own(path: Path) -> Path:
    """Records of an application with keys of its own."""
    path.write_text("".join(json.dumps(row) + "\n" for row in OWN))
    return path


def tried(*arguments: str | Path) -> dict[str, Any]:
    """The JSON of a trial."""
    done = CliRunner().invoke(sources, ["try", *map(str, arguments), "--json"])
    answer: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == (0 if answer["kept"] else 1)
    return answer


def test_unknown_records_are_mapped_masked_and_counted(tmp_path: Path) -> None:
    answer = tried(own(tmp_path / "calls.jsonl"))
    assert {one["column"]: one["key"] for one in answer["mapping"]} == {
        "id": "call_id",
        "timestamp": "at",
        "messages": "question",
        "response": "answer",
        "user_id": "customer.id",
        "feedback": "rating",
    }
    assert (answer["kept"], answer["skipped"], answer["quarantined"], answer["complete"]) == (8, {}, [], True)
    assert answer["coverage"] == {
        "calls": 4, "consent": 0, "refused": 0, "unstated": 4, "user": 4, "session": 0, "tools": 0, "feedback": 4, "reference": 0,
        "late_reference": 0,
        "places": {"user": "customer.id 4"},
    }  # fmt: skip
    assert len(answer["examples"]) == 3
    assert "[EMAIL_1]" in json.dumps(answer["examples"])
    assert not any(secret in json.dumps(answer["examples"]) for secret in ("bob@", "u-77"))


def test_a_folder_of_another_kind_hides_no_traces(tmp_path: Path) -> None:
    (tmp_path / "a-ratings").mkdir()
    for day in range(30):
        (tmp_path / "a-ratings" / f"{day}.jsonl").write_text('{"of": "c-1", "stars": 4}\n')
    (tmp_path / "requests").mkdir()
    call = {"id": "c-1", "timestamp": "2026-01-05T09:00:00Z", "messages": "hello", "response": "good day"}
    (tmp_path / "requests" / "1.jsonl").write_text(json.dumps(call) + "\n")
    answer = tried(tmp_path)
    assert (answer["kind"], answer["kept"]) == ("jsonl", 1)


def test_one_text_that_answers_many_prompts_is_told(tmp_path: Path) -> None:
    calls = [{"id": f"c-{n}", "timestamp": "2026-01-05T09:00:00Z", "messages": f"question {n}", "response": "no answer"} for n in range(12)]
    (tmp_path / "calls.jsonl").write_text("".join(json.dumps(call) + "\n" for call in calls))
    assert "'no answer' answers 12 different prompts of 12 calls" in tried(tmp_path / "calls.jsonl")["repeated"]


def written(path: Path, prompts: list[list[str]]) -> Path:
    """Calls with these user messages, and an answer to each but the last in between."""
    with path.open("w") as file:
        for n, texts in enumerate(prompts):
            both = [m for text in texts for m in ({"role": "user", "content": text}, {"role": "assistant", "content": f"to {text}"})]
            call = {"id": f"c-{n}", "timestamp": "2026-01-05T09:00:00Z", "messages": both[:-1], "response": f"answer {n}"}
            file.write(json.dumps(call) + "\n")
    return path


def test_examples_before_each_question_are_told(tmp_path: Path) -> None:
    shots = [["Charged twice", "Late parcel", f"question {n}"] for n in range(12)]
    told = tried(written(tmp_path / "shots.jsonl", [*shots, *([f"other {n}"] for n in range(8))]))["opening"]
    assert "12 of 20 different prompts begin with the same 2 user messages" in told
    assert told.endswith('add to holdout.skip_messages: ["charged twice", "late parcel"]')
    said = CliRunner().invoke(sources, ["try", str(tmp_path / "shots.jsonl")], env={"COLUMNS": "400"})
    assert 'holdout.skip_messages: ["charged twice", "late parcel"]' in said.stdout + said.stderr


def test_a_greeting_is_told_unless_the_turns_belong_to_few_conversations(tmp_path: Path) -> None:
    turns = [["Hi", f"question {n}", "and then?"][:length] for n in range(12) for length in (1, 2, 3)]
    told = tried(written(tmp_path / "greeted.jsonl", [*turns, *([f"other {n}"] for n in range(8))]))["opening"]
    assert told.startswith('25 of 33 different prompts begin with the user message "hi", and count as one conversation')
    assert "add it to holdout.skip_greetings" in told
    long = [["Hi", *(f"turn {n}" for n in range(length))] for length in range(30)]
    assert tried(written(tmp_path / "one.jsonl", [*long, *([f"other {n}"] for n in range(8))]))["opening"] is None


def test_a_beginning_that_questions_have_too_is_not_proposed(tmp_path: Path) -> None:
    begin = "Classify the sentiment of the following review, and answer with one word: "
    shots = [[f"{begin}Great!", f"{begin}Awful.", f"{begin}review {n}"] for n in range(12)]
    told = tried(written(tmp_path / "shots.jsonl", shots))["opening"]
    assert 'skip_messages: ["classify the sentiment of the following review, and answer with one word: great!"' in told
    empty = tried(written(tmp_path / "empty.jsonl", [["?", f"question {n}"] for n in range(12)]))["opening"]
    assert empty.endswith("add to holdout.skip_messages how they begin and the questions do not")


def test_an_environment_that_differs_in_its_details_is_told(tmp_path: Path) -> None:
    begin = "<environment_context> The agent may read and write files below the folder "
    talks = [[f"{begin} /home/user-{n}/project at {n} o'clock", f"question {n}"] for n in range(12)]
    told = tried(written(tmp_path / "agent.jsonl", talks))["opening"]
    assert told.endswith('add to holdout.skip_messages: ["<environment_context> the agent may read and write files"]')
    form = "Classify the following ticket into one of the categories billing and shipping: "
    forms = [[f"{form} ticket {n}", f"{form} ticket {n} again"] for n in range(12)]
    assert tried(written(tmp_path / "forms.jsonl", forms))["opening"] is None, "the questions begin alike, too"


def test_conversations_that_begin_with_the_same_greeting_are_no_examples(tmp_path: Path) -> None:
    talks = [["Hello", f"question {n}"] for n in range(12)]
    assert tried(written(tmp_path / "talks.jsonl", [["Hello"], *talks]))["opening"] is None, "the first call has the greeting alone"
    few = [["Environment", f"question {n}"] for n in range(9)]
    assert tried(written(tmp_path / "few.jsonl", few))["opening"] is None


def test_the_text_says_what_it_is_and_how_to_correct_it(tmp_path: Path) -> None:
    done = CliRunner().invoke(sources, ["try", str(own(tmp_path / "calls.jsonl"))], env={"COLUMNS": "200"})
    shown = done.stdout + done.stderr
    for text in ("a source of the kind jsonl reads it", "how sure", "--mapping COLUMN=KEY", "[[sources]]", "4 do not say"):
        assert text in shown, shown


def test_a_given_key_replaces_the_guess_and_a_wrong_one_keeps_nothing(tmp_path: Path) -> None:
    path = own(tmp_path / "calls.jsonl")
    answer = tried(path, "--mapping", "user_id=call_id")
    assert answer["given"] == {"user_id": "call_id"}
    assert 'user_id = "call_id"' in answer["block"]
    answer = tried(path, "--mapping", "timestamp=question")
    assert [one["reason"] for one in answer["quarantined"]] == ["bad_timestamp"]
    done = CliRunner().invoke(sources, ["try", str(path), "--mapping", "nonsense"])
    assert "COLUMN=KEY" in str(done.exception)


def test_the_rules_of_a_loop_file_apply(tmp_path: Path) -> None:
    loop = tmp_path / "loop.toml"
    loop.write_text(
        '[line]\nname = "t"\nserved_model = "t"\n[[sources]]\nname = "s"\nkind = "receiver"\n[[rewards]]\nname = "exact_match"\n'
    )
    answer = tried(own(tmp_path / "calls.jsonl"), "--loop", loop)
    assert all("answer" not in one["read"] for one in answer["examples"])  # consent is required


def test_a_place_without_calls_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    answer = tried(tmp_path)
    assert (answer["kind"], answer["unread"]) == (None, [{"file": "notes.txt", "why": "unknown content"}])


def test_the_api_of_langfuse_can_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", KEYS[0])
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", KEYS[1])
    with langfuse_server() as server:
        answer = tried(server.url)
        assert (answer["kind"], answer["kept"]) == ("langfuse", 0)
        assert f'base_url = "{server.url}"' in answer["block"]
        assert "since" not in answer["block"]


@pytest.mark.slow
def test_the_blocks_work_in_a_loop_file(tmp_path: Path) -> None:
    blocks, kept = [], {}
    for kind, fill in PLACES.items():
        folder = tmp_path / f"place-{kind}"
        folder.mkdir()
        fill(folder)
        more = ("--mapping", "response=reply.text") if kind == "parquet" else ()
        answer = tried(folder, *more)
        blocks.append(answer["block"])
        kept[kind] = answer["kept"]
    blocks.append(tried(own(tmp_path / "calls.jsonl"))["block"])
    (tmp_path / "place-jsonl" / "b.zip").write_bytes(b"PK\x03\x04")
    loop = tmp_path / "loop.toml"
    loop.write_text(
        '[line]\nname = "t"\nserved_model = "t"\n\n'
        + "\n".join(blocks)
        + '\n[[rewards]]\nname = "exact_match"\n\n[governance]\nconsent = "assumed"\n'
    )
    done = ratchet("ingest", loop, "--json", home=tmp_path / "home", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["kept"] + report["feedback"]["kept"] == sum(kept.values()) + 8
    assert report["unread"] == [{"source": "place-jsonl", "file": "b.zip", "why": "a zip archive"}]
    again = ratchet("ingest", loop, home=tmp_path / "home", cwd=tmp_path)
    assert "1 file is not read: b.zip (a zip archive)" in again.stdout + again.stderr
    checked = ratchet("check", loop, "--json", home=tmp_path / "home", cwd=tmp_path)
    assert any("b.zip (a zip archive)" in one["text"] and one["level"] == "warning" for one in json.loads(checked.stdout)["findings"])


@pytest.mark.slow
def test_check_names_a_missing_key_of_the_api(tmp_path: Path) -> None:
    loop = tmp_path / "loop.toml"
    source = '[[sources]]\nname = "lf"\nkind = "langfuse"\n[sources.options]\nbase_url = "https://langfuse.example"\n'
    loop.write_text(f'[line]\nname = "t"\nserved_model = "t"\n{source}[[rewards]]\nname = "exact_match"\n')
    keys = {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": ""}
    checked = ratchet("check", loop, "--json", home=tmp_path / "home", cwd=tmp_path, **keys)
    found = [one for one in json.loads(checked.stdout)["findings"] if one["about"] == "source"] if checked.stdout else []
    assert any("LANGFUSE_SECRET_KEY" in one["text"] and one["level"] == "error" for one in found), checked.stdout


STARS = """\
[line]
name = "support"
served_model = "m"
[governance]
consent = "assumed"
[[sources]]
name = "calls"
kind = "jsonl"
path = "data"
rating_scale = [1, 5]
mapping = { id = "call_id", timestamp = "at", messages = "question", response = "answer", feedback = "stars" }
[[rewards]]
name = "user_feedback"
"""


def test_the_settings_of_the_loop_files_source_apply_to_its_places(tmp_path: Path) -> None:
    (tmp_path / "data" / "day").mkdir(parents=True)
    loop, file, other = tmp_path / "loop.toml", tmp_path / "data" / "day" / "calls.jsonl", tmp_path / "calls.jsonl"
    loop.write_text(STARS)
    rows = [{"call_id": f"c{n}", "at": f"2026-01-01 00:00:0{n}", "question": f"Q {n}?", "answer": "A.", "stars": n} for n in range(1, 6)]
    for one in (file, other):
        one.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answer = tried(file, "--loop", loop)
    assert (answer["source"], answer["kept"], answer["quarantined"], answer["block"]) == ("calls", 10, [], None)
    assert tried(tmp_path / "data", "--loop", loop)["source"] == "calls"
    answer = tried(other, "--loop", loop)
    assert answer["source"] is None
    assert "feedback" not in {one["column"] for one in answer["mapping"]}
    said = CliRunner().invoke(sources, ["try", str(file), "--loop", str(loop)])
    assert "belongs to the source 'calls'" in said.stdout + said.stderr
    assert "Add this to a loop file" not in said.stdout + said.stderr


def test_a_given_mapping_replaces_that_of_the_loop_files_source(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "loop.toml").write_text(STARS)
    row = {"call_id": "c1", "at": "2026-01-01", "question": "Q?", "answer": "A.", "good": "B."}
    (tmp_path / "data" / "calls.jsonl").write_text(json.dumps(row) + "\n")
    answer = tried(tmp_path / "data" / "calls.jsonl", "--loop", tmp_path / "loop.toml", "--mapping", "response=good")
    assert answer["examples"][0]["read"]["answer"] == "B."
    assert answer["block"].startswith('mapping = { id = "call_id"')
    assert 'response = "good"' in answer["block"]
    assert answer["why"] == "as the loop file says"


def test_the_most_specific_source_of_the_loop_file_counts(tmp_path: Path) -> None:
    (tmp_path / "data" / "stars").mkdir(parents=True)
    loop, line = tmp_path / "loop.toml", '[line]\nname = "support"\nserved_model = "m"\n[[rewards]]\nname = "user_feedback"\n'
    paths = {"all": "data", "stars": "data/stars", "one": "data/twice", "two": "data/twice"}
    loop.write_text(line + "".join(f'[[sources]]\nname = "{name}"\nkind = "jsonl"\npath = "{path}"\n' for name, path in paths.items()))

    def name_of(place: str) -> str | None:
        found = configured(load_loop(loop), tmp_path, str(tmp_path / place), None)
        return None if found is None else found.name

    assert [name_of(place) for place in ("data/stars/calls.jsonl", "data/stars", "data", "")] == ["stars", "stars", "all", None]
    with pytest.raises(ConfigError, match="belongs to the sources one, two"):
        name_of("data/twice")
