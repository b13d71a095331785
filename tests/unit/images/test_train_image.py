"""Structural checks of the image of training jobs. The image itself is not built here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ratchet.k8s.profiles.profile import Profile

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "images" / "train.Dockerfile"


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, with continued lines joined, as (instruction, arguments)."""
    lines = [line for line in FILE.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(name.upper(), rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def all_of(steps: list[tuple[str, str]], name: str) -> list[str]:
    """Return the arguments of all instructions of one kind."""
    return [rest for instruction, rest in steps if instruction == name]


def test_the_base_is_pinned_by_a_digest_that_has_no_default(steps: list[tuple[str, str]]) -> None:
    assert all_of(steps, "FROM") == ["${BASE_IMAGE}@${BASE_DIGEST}"]
    assert "BASE_DIGEST" in all_of(steps, "ARG")


def test_every_package_is_checked_by_hash_or_comes_from_the_build_context(steps: list[tuple[str, str]]) -> None:
    installs = [part for run in all_of(steps, "RUN") for part in run.split("&&") if "pip install" in part]
    assert len(installs) == 2
    for install in installs:
        assert "--require-hashes -r /opt/ratchet/train.lock" in install or "--no-deps --no-index" in install
    lock = (ROOT / "requirements" / "train.lock").read_text()
    assert re.search(r"^torch==", lock, re.MULTILINE)
    assert "--hash=sha256:" in lock


def test_nothing_is_downloaded_past_the_package_managers(steps: list[tuple[str, str]]) -> None:
    assert not all_of(steps, "ADD")
    assert not re.search(r"https?://|curl|wget|git clone", "\n".join(rest for _, rest in steps))
    for copied in all_of(steps, "COPY"):
        source = copied.split()[0]
        assert source == "dist/*.whl" or (ROOT / source).is_file()


def test_pods_can_run_as_an_ordinary_user(steps: list[tuple[str, str]]) -> None:
    user = Profile.model_fields["user"].default
    assert all_of(steps, "USER") == [f"{user}:{user}"]
    last = max(number for number, (name, _) in enumerate(steps) if name == "RUN")
    assert [name for name, _ in steps].index("USER") > last, "only the build may run as root"
    assert "/root" not in FILE.read_text()
    assert any("/opt/ratchet" in run for run in all_of(steps, "RUN"))


def test_triton_has_a_c_compiler(steps: list[tuple[str, str]]) -> None:
    assert any(re.search(r"apt-get install.*\bgcc\b.*\blibc6-dev\b", run) for run in all_of(steps, "RUN"))
