"""Tests that a loop file for a cluster is checked offline, as a team's CI does: without a kubeconfig, a bucket or a database."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ratchet.flows.cli.main import cli
from tests.cluster.loop_files import MACHINE
from tests.cluster.whole import CLUSTER, SERVED
from tests.toy_line import LOOP, write_loop


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("KUBECONFIG", "RATCHET_EXCHANGE", "RATCHET_ARTIFACTS_URL", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
    words = {"namespace": "ratchet", "image": "registry.example/ratchet:1", "python": "python3", "replicas": 2}
    file = write_loop(tmp_path, "toy")
    text = LOOP.format(name="toy").replace("[serving.options]\nthreads = 1\n", SERVED.format(**words))
    file.write_text(text + CLUSTER.format(**words, bucket="team-bucket", endpoint="https://s3.example"))
    (tmp_path / "machine.toml").write_text(MACHINE.format(mounts=["/usr"], repo="/r"))
    return file


def test_a_valid_file_passes(loop: Path) -> None:
    done = CliRunner().invoke(cli, ["check", str(loop)])
    assert done.exit_code == 0, done.output
    assert "kubernetes" in done.output


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ('profile = "machine.toml"\narguments', 'profile = "absent.toml"\narguments', r"serving.options.profile"),
        ("replicas = 2", "replicas = 0", "replicas"),
        ('url = "http://toy.example"', 'url = "toy.example"', "router_options"),
        ('AWS_ACCESS_KEY_ID = "bucket/AWS_ACCESS_KEY_ID"', 'AWS_ACCESS_KEY_ID = "AKIAEXAMPLE"', "secret/key"),
    ],
)
def test_a_mistake_is_found(loop: Path, before: str, after: str, problem: str) -> None:
    text = loop.read_text()
    assert before in text
    loop.write_text(text.replace(before, after, 1))
    done = CliRunner().invoke(cli, ["check", str(loop)])
    assert problem in done.output + str(done.exception)
    assert done.exit_code != 0
