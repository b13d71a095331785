"""Tests of the pages about a first day on a cloud: all that can be parsed without the cloud is parsed."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from ratchet.flows.cli.main import cli
from ratchet.flows.config.load import parse_loop
from ratchet.k8s.manifests.environment import extras, render_environment
from ratchet.k8s.preflight.chart_values import merged, secret_keys
from ratchet.k8s.profiles.profile import load_profile
from ratchet.k8s.serving.models import ClusterServerOptions

FOLDER = Path(__file__).parents[2] / "docs" / "kubernetes"
PAGES = ("first-day-eks.md", "first-day-gke.md")
PROGRAMS = {"aws", "eksctl", "gcloud", "helm", "kubectl", "ratchet", "sh"}
page = pytest.mark.parametrize("page", PAGES)


def blocks(page: str) -> list[str]:
    """Return the fenced blocks of a page."""
    return re.findall(r"^```\n(.*?)^```", (FOLDER / page).read_text(), re.MULTILINE | re.DOTALL)


def kind_of(block: str) -> str:
    """Return `loop file`, `values` or `commands`."""
    return "loop file" if block.startswith("[") else "values" if re.match(r"\w+:", block) else "commands"


def commands(page: str) -> list[list[str]]:
    """Return the words of every command of a page. A redirection ends a command."""
    lines = [line for block in blocks(page) if kind_of(block) == "commands" for line in block.splitlines()]
    return [shlex.split(line.partition(" > ")[0]) for line in lines]


def loop_of(page: str) -> Any:
    (text,) = [block for block in blocks(page) if kind_of(block) == "loop file"]
    return parse_loop(tomllib.loads(text), page)


def values_of(page: str) -> dict[str, Any]:
    (text,) = [block for block in blocks(page) if kind_of(block) == "values"]
    return merged(yaml.safe_load((resources.files("ratchet.k8s") / "chart" / "values.yaml").read_text()), yaml.safe_load(text))


def parsed(words: list[str]) -> None:
    """Parse a `ratchet` command with its options, without running it. Raises UsageError if it does not exist or is wrong."""
    command: click.Command = cli
    while isinstance(command, click.Group):
        context = click.Context(command)
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no command {words[0]}"
        command, words = found, words[1:]
    command.make_parser(click.Context(command)).parse_args(args=list(words))


@page
def test_every_block_of_commands_is_valid_shell(page: str) -> None:
    for block in blocks(page):
        if kind_of(block) == "commands":
            done = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, check=False)
            assert done.returncode == 0, done.stderr
    assert {words[0] for words in commands(page)} <= PROGRAMS


@page
def test_every_command_of_ratchet_is_parsed_with_its_options(page: str) -> None:
    own = [words[1:] for words in commands(page) if words[0] == "ratchet"]
    own += [words[words.index("ratchet.flows.cli.main") + 1 :] for words in commands(page) if "ratchet.flows.cli.main" in words]
    assert len(own) > 7
    for words in own:
        parsed(words)


def test_a_wrong_option_is_found() -> None:
    with pytest.raises(click.UsageError):
        parsed(["k8s", "doctor", "loop.toml", "--valeus", "x"])


@page
def test_the_loop_file_is_valid_and_its_objects_can_be_rendered(page: str) -> None:
    loop = loop_of(page)
    ClusterServerOptions.model_validate(loop.serving.options)
    (render,) = [words for words in commands(page) if words[:3] == ["ratchet", "k8s", "render"]]
    options = render[render.index("--admin") + 1 :]
    given = {name.removeprefix("--"): value for name, value in zip(options[::2], options[1::2], strict=True)}
    reservation = given.pop("reservation", None)
    made = extras(**given, reservation=[reservation] if reservation else [])
    text = " ".join(one.shape.model_dump_json() for one in render_environment(loop.cluster, load_profile(loop.cluster.profile), made))
    assert "REPLACE-ME" not in text
    assert reservation is None or reservation in text


@page
def test_every_secret_of_the_values_and_of_the_loop_file_is_created_with_its_keys(page: str) -> None:
    loop, values = loop_of(page), values_of(page)
    wanted = secret_keys(values, [loop.line.name])
    for reference in [*loop.cluster.secrets.values(), *loop.serving.options.get("secrets", {}).values()]:
        name, _, key = reference.partition("/")
        wanted.setdefault(name, set()).add(key)
    assert ["ratchet", "k8s", "keys", "loop.toml"] in commands(page)
    made = {"ratchet-keys": wanted["ratchet-keys"]}  # ratchet k8s keys prints them for each line
    for words in commands(page):
        if words[:4] == ["kubectl", "create", "secret", "generic"]:
            made[words[4]] = {word.split("=")[1] for word in words if word.startswith("--from-file=")}
    assert made == wanted


@page
def test_the_doctor_gets_what_the_chart_gets(page: str) -> None:
    values = values_of(page)
    assert [line["name"] for line in values["lines"]] == [loop_of(page).line.name]
    (install,) = [words for words in commands(page) if words[:2] == ["helm", "install"] and "k8s/chart" in words]
    assert install[install.index("--values") + 1] == "values.yaml"
    assert install[install.index("--namespace") + 1] == "ratchet"


@pytest.mark.slow
@page
def test_the_loop_file_passes_the_check_without_a_kubeconfig(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = [block for block in blocks(page) if kind_of(block) == "loop file"]
    (tmp_path / "loop.toml").write_text(text)
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    done = CliRunner().invoke(cli, ["check", str(tmp_path / "loop.toml")])
    assert done.exit_code == 0, done.output
