"""Mistakes of the first hour, and the message that each gets: what is wrong, where, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ratchet.contracts.errors import RatchetError
from ratchet.flows.cli.main import cli
from ratchet.flows.composition.before_training import ModelFindings


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in which the commands run, deep enough that no other installation is near."""
    place = tmp_path / "first" / "hour"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    monkeypatch.delenv("RATCHET_HOME", raising=False)
    return place


def said(*arguments: str) -> str:
    """Run a command that must fail with a message of ours, and return the message."""
    result = CliRunner().invoke(cli, list(arguments))
    assert isinstance(result.exception, RatchetError | SystemExit), f"{arguments}: {result.exception!r}\n{result.output}"
    return str(result.exception) if isinstance(result.exception, RatchetError) else result.stderr


def started(name: str = "support.toml") -> None:
    """Create a starter loop file."""
    assert CliRunner().invoke(cli, ["init", name]).exit_code == 0


def changed(old: str, new: str) -> None:
    """Change the starter loop file."""
    file = Path("support.toml")
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_a_file_without_an_extension_becomes_a_loop_file_named_after_its_line() -> None:
    started("Support bot")
    assert 'name = "support-bot"' in Path("Support bot.toml").read_text(encoding="utf-8")


def test_the_line_of_a_loop_file_that_was_never_adopted() -> None:
    started()
    assert said("trigger", "support").endswith("to use the loop file support.toml of this folder, pass support.toml")
    assert "has no model yet: run `ratchet adopt" in said("trigger", "support.toml")


def test_a_command_about_the_line_before_a_model_is_adopted() -> None:
    started()
    assert "`ratchet adopt support.toml MODEL_FOLDER` creates the line" in said("approve")
    assert "loop files here: support.toml" in said("serve")


def test_another_word_for_a_new_credential() -> None:
    started()
    assert "did you mean 'add'?" in said("token", "create", "support.toml")


def test_an_empty_folder_as_a_model(folder: Path) -> None:
    started()
    (folder / "model").mkdir()
    assert "model is empty; pass the folder of a model (config.json" in said("adopt", "support.toml", "model", "--by", "ada")


def test_a_file_whose_folder_does_not_exist_or_whose_name_has_a_blank() -> None:
    assert "the folder nowhere does not exist; create it first" in said("init", "nowhere/support.toml")
    assert "ratchet check 'My Bot.toml'" in CliRunner().invoke(cli, ["init", "My Bot"]).stderr


def test_the_name_of_a_model_instead_of_its_folder() -> None:
    started()
    assert "`ratchet adopt LOOP hub:OWNER/NAME@REVISION`" in said("adopt", "support.toml", "Qwen/Qwen3-0.6B", "--by", "ada")


def test_a_model_file_of_another_program(folder: Path) -> None:
    started()
    (folder / "gguf").mkdir()
    (folder / "gguf" / "model.gguf").touch()
    assert "gguf has no *.safetensors weights; use a folder written by save_pretrained" in said(
        "adopt", "support.toml", "gguf", "--by", "ada"
    )


def test_a_model_with_which_nothing_can_work_is_adopted_only_by_force(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started()
    (folder / "model").mkdir()
    for name in ("model.safetensors", "modeling.py"):
        (folder / "model" / name).touch()
    findings = ModelFindings(["the tokenizer has no chat template; add chat_template.jinja to the model folder"], [])
    monkeypatch.setattr("ratchet.flows.composition.before_training.look_at_model", lambda *_: findings)
    refused = said("adopt", "support.toml", "model", "--by", "ada")
    assert "no chat template; add chat_template.jinja" in refused
    assert "A line adopts one model only, and cannot change it later" in refused
    assert "modeling.py" in said("adopt", "support.toml", "model", "--by", "ada", "--force"), "the next check, that for code, is reached"


def test_model_and_loop_file_in_the_wrong_order(folder: Path) -> None:
    started()
    (folder / "model").mkdir()
    assert "model is a folder; pass a loop file (*.toml)" in said("adopt", "model", "support.toml", "--by", "ada")


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ("“support”", "the value of 'name'; write straight quotation marks (\") instead of typographic ones"),
        ("support", "the value of 'name'; a text needs quotation marks"),
    ],
)
def test_a_text_without_straight_quotation_marks(value: str, remedy: str) -> None:
    started()
    changed('name = "support"', f"name = {value}")
    assert said("check", "support.toml") == f"support.toml is not TOML: Invalid value (at line 4, column 8): {remedy}"


def test_a_toml_error_does_not_repeat_the_value() -> None:
    Path("x.toml").write_text('api_key = "s3cret\n', encoding="utf-8")
    assert said("check", "x.toml") == "x.toml is not TOML: Illegal character '\\n' (at line 1, column 18): the value of 'api_key'"


def test_a_plan_before_there_is_a_model(folder: Path) -> None:
    started()
    assert f"has no model yet: run `ratchet adopt {folder}/support.toml MODEL_FOLDER`" in said("plan", "support.toml")


def test_a_path_of_traces_that_is_relative_to_another_folder() -> None:
    started()
    changed('kind = "receiver"', 'kind = "jsonl"\npath = "data/traces.jsonl"')
    message = said("ingest", "support.toml")
    assert "data/traces.jsonl" in message
    assert "does not exist" in message


def test_a_misspelt_key() -> None:
    started()
    changed("[gate]", "[gaet]")
    assert "unknown key 'gaet'; did you mean 'gate'?" in said("check", "support.toml")


def test_the_folder_of_a_loop_file_instead_of_the_file(folder: Path) -> None:
    started()
    message = said("check", ".")
    assert "is a folder; pass a loop file (*.toml)" in message


def test_a_second_init_keeps_the_first_file() -> None:
    started()
    assert "support.toml already exists; choose another path or remove the file" in said("init", "support.toml")
