"""Tests of the documentation: its commands and names exist, its loop files parse, its code runs, and its links resolve."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from docs.code_facts import PACKAGES
from ratchet.contracts.loop import SafetySettings
from ratchet.flows.cli.main import COMMANDS, cli
from ratchet.flows.config.load import load_loop

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (*PACKAGES, "tests", "docs", "examples", "loops", "benchmarks", "requirements", ".ci")
EXTERNAL = {
    "WANDB_API_KEY",
    "SAFETY",
    "allow_training",
    "LLMInferenceService",
    "cluster_faults",
    "cluster_ray",
    "cluster_replicas",
    "cluster_gateway_rollout",
    "cluster_vllm",
    "ReadWriteOnce",
    "ReadWriteOncePod",
    "loop.toml",
    "bad-loop.toml",
    "pg_dump",
    "tune.bufsize",
    "GENERATION",
    "maxRetry",
    "ErrImagePull",
    "OOMKilled",
    "calculate_rewards",
    "user_api_key_user_id",
    "awss3",
    "otlp_json",
    "otlp_proto",
    "AWS_SECRET_ACCESS_KEY",
    "examples/configs/grpo_math_1B.yaml",
    "conversation_id",
    "end_user",
    "thread_id",
    "user_api_key_end_user_id",
    "system_prompt",
}
"""Names of the reader's files, of Postgres, Langfuse, LiteLLM, the OpenTelemetry collector, Volcano, Kubernetes and NeMo RL."""
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "loops").rglob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_in_the_documentation_exists(page: Path) -> None:
    text = page.read_text()
    for name in set(re.findall(r"(?:^|[`(\s/])ratchet ([a-z0-9]+)", text, re.MULTILINE)) - {"turns"}:
        assert name in COMMANDS, f"{page.name} names `ratchet {name}`, which does not exist"
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in set(re.findall(r"`make ([a-z0-9]+)`", text)):
        assert name in targets, f"{page.name} names `make {name}`, which does not exist"


@cache
def _files() -> frozenset[str]:
    """Returns the files and folders of the repository, relative to its root, without hidden folders other than .ci."""
    found = [*ROOT.iterdir(), *(path for top in FOLDERS for path in (ROOT / top).rglob("*"))]
    return frozenset(path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts)


@cache
def _code() -> str:
    """Returns the code of the product, the loop files, the build files and the benchmarks."""
    ended = (".py", ".toml", ".sh", ".html", ".yaml", ".yml", ".json")
    code = [name for name in _files() if name.endswith(ended) and not name.startswith(("tests/", "docs/", "benchmarks/results/"))]
    return "\n".join((ROOT / name).read_text() for name in [*code, "Makefile"])


@cache
def _words() -> frozenset[str]:
    """Returns every word in the code."""
    return frozenset(re.findall(r"\w+", _code()))


def stale(span: str) -> bool:
    """Returns whether a code span of a page is a path, a file name or an identifier that the repository does not contain.

    A file that a command writes is named in the code.
    """
    if re.fullmatch(r"[\w.-]*/[\w./-]+", span):
        name = span.rstrip("/")
        inside = name.split("/")[0] in FOLDERS or name.endswith((".py", ".sh", ".lock"))
        return inside and not any(f"/{path}".endswith(f"/{name}") for path in _files())
    if re.fullmatch(r"[\w.-]+\.(py|sh|lock|yml|toml|md)", span):
        return not any(path.rsplit("/", 1)[-1] == span for path in _files()) and f'"{span}"' not in _code()
    if re.fullmatch(r"[A-Za-z_][\w.]*(\(.*\))?", span):
        return any(word not in _words() for word in re.findall(r"\w+", span.split("(")[0]))
    return False


@pytest.mark.parametrize("span", ["flows/core/absent.py", "absent.py", "job/absent.py", "contracts.AbsentPort", "AbsentPort", "absent_key"])
def test_a_stale_name_is_found(span: str) -> None:
    assert stale(span)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name != "reference"], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_every_name_in_the_documentation_exists(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    spans = set(re.findall(r"`([^`\n]+)`", prose)) - EXTERNAL
    assert sorted(span for span in spans if not re.fullmatch(r"[0-9a-f]{12}", span) and stale(span)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_in_the_documentation_leads_to_a_file(page: Path) -> None:
    for link in set(re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text())):
        assert (page.parent / link).exists(), f"{page.name} links to {link}, which does not exist"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_text(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--help"])
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) > 4


@pytest.mark.parametrize("loop", sorted((ROOT / "loops").glob("*/loop.toml")), ids=lambda loop: loop.parent.name)
def test_every_loop_file_parses(loop: Path) -> None:
    assert load_loop(loop).line.name


def test_every_page_states_the_python_versions_of_the_package() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    first, end = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", required).groups()  # type: ignore[union-attr]
    whole = f"Python 3.{first} to 3.{int(end) - 1}"
    files = [page for page in PAGES if "nemo" not in page.name]  # NeMo RL has a Python of its own
    for page in [*files, *sorted((ROOT / "loops").rglob("*.*")), ROOT / "Makefile"]:
        stated = set(re.findall(r"Python 3\.\d+(?: to 3\.\d+)?", page.read_text()))
        assert stated <= {whole}, page
    for page in ("README.md", "CONTRIBUTING.md", "docs/quickstart.md"):
        assert whole in (ROOT / page).read_text(), page


def test_the_readme_begins_with_a_sentence_a_picture_and_three_commands() -> None:
    title, sentence, picture, *rest = (ROOT / "README.md").read_text().split("\n\n")[:6]
    assert title == "# Ratchet"
    assert sentence.count(". ") == 0, "one sentence"
    shown = re.search(r"\]\((docs/images/.+\.svg)\)", picture)
    assert shown
    image = (ROOT / shown[1]).read_text()
    assert int(image.split('width="')[1].split('"')[0]) <= 440, "its texts are readable on a phone"
    assert "<script" not in image
    commands = rest[0].splitlines()[2:-1]
    assert [line.split()[0] for line in commands] == ["git", "cd", "make"]
    assert rest[1].startswith("**For you** if")
    assert "**Not for you** if" in rest[1]


def test_init_writes_a_valid_loop_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["init", "mine.toml", "--line", "my-line"])
    assert result.exit_code == 0, result.output
    loop = load_loop(tmp_path / "mine.toml")
    assert loop.line.name == "my-line"
    assert loop.gate.safety == SafetySettings(), "on in new loop files"
