"""The names and exit codes of the job protocol occur in the product only where they are defined."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from ratchet.contracts.jobs import exit_codes
from ratchet.flows.config import variables
from ratchet.local import service
from ratchet.materializer.receive import receiver
from ratchet.runtime import bucket_artifacts
from ratchet.runtime.jobs import job_protocol
from ratchet.runtime.jobs.job_protocol import IncarnationFile, RunFile, Variable
from ratchet.runtime.serving import exchange
from tests.architecture.test_rules import PACKAGES, REPO, SOURCES

PROTOCOL, CODES = REPO / "runtime/jobs/job_protocol.py", REPO / "contracts/jobs/exit_codes.py"
VARIABLES = sorted(one.name for one in vars(job_protocol).values() if isinstance(one, Variable))
FILES = sorted({file.value for kind in (RunFile, IncarnationFile) for file in kind if "." in file})
"""Names with an extension. The names `model`, `work`, `cache` and `lock` are common words, which other modules use for other things."""
OTHERS = {
    ("local/service.py", "output.log"): "the log of a background process, in its own folder",
}
"""Allowed occurrences: (file, name) -> reason."""
NUMBERED = re.compile(r"(^|/)(beat-|step_)($|\*|\(|\\d|\{)")
"""Beginning of a name that a number completes."""
OF_THE_RELEASE = "trainers/job/nemo/steps.py"
"""NeMo RL names its checkpoints `step_N`, too."""


@cache
def texts(path: Path) -> tuple[tuple[int, str], ...]:
    """Return line and content of each string constant and each part of an f-string. Docstrings are left out."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    strings = (node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docs)
    return tuple((node.lineno, node.value) for node in strings if isinstance(node.value, str))


def found(pattern: str) -> set[tuple[str, str]]:
    """Return (file, match) of all string constants of the product outside the protocol that contain `pattern`."""
    paths = [path for path in SOURCES if path != PROTOCOL]
    return {(path.relative_to(REPO).as_posix(), hit) for path in paths for _, text in texts(path) for hit in re.findall(pattern, text)}


@pytest.mark.slow
def test_variables_of_jobs_are_named_only_in_the_protocol() -> None:
    names = "|".join(map(re.escape, VARIABLES))
    assert not found(rf"(?<!\w)(?:{names})(?!\w)"), "use runtime/jobs/job_protocol.py"
    data = [
        path for package in PACKAGES for path in (REPO / package).rglob("*") if path.suffix in (".toml", ".yaml", ".yml", ".json", ".html")
    ]
    assert data
    assert not [path for path in data if re.search(rf"\b({names})\b", path.read_text())]


@pytest.mark.parametrize("name", FILES)
def test_files_of_jobs_are_named_only_in_the_protocol(name: str) -> None:
    hits = found(rf"(?<![\w-]){re.escape(name)}(?!\w)")
    assert hits == {place for place in OTHERS if place[1] == name}, "use runtime/jobs/job_protocol.py"


def test_numbered_files_of_jobs_are_named_only_in_the_protocol() -> None:
    paths = [path for path in SOURCES if path not in (PROTOCOL, REPO / OF_THE_RELEASE) and "fakes" not in path.parts]
    assert not {(path.relative_to(REPO).as_posix(), line, text) for path in paths for line, text in texts(path) if NUMBERED.search(text)}


@pytest.mark.slow
def test_exit_codes_of_jobs_are_numbers_only_where_they_are_defined() -> None:
    codes = {value for value in vars(exit_codes).values() if isinstance(value, int) and value > 1}
    assert len(codes) == 5
    places = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if path != CODES and isinstance(node, ast.Constant) and type(node.value) is int and node.value in codes:
                places.append(f"{path.relative_to(REPO)}:{node.lineno}: {node.value}")
    assert not places, "use contracts/jobs/exit_codes.py"


def test_variables_of_the_service_are_defined_once() -> None:
    modules = (variables, service, receiver, exchange, bucket_artifacts)
    ours = {value for module in modules for value in vars(module).values() if isinstance(value, str) and value.startswith("RATCHET_")}
    assert {"RATCHET_HOME", "RATCHET_SERVICE"} <= ours
    literals = [text for path in SOURCES if path != PROTOCOL for _, text in texts(path) if re.fullmatch(r"RATCHET_[A-Z_]*[A-Z]", text)]
    assert sorted(literals) == sorted(ours)
