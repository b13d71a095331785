"""Tests of the environment in a pod: library path, variables of a network plugin, and files that the service can use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.exit_codes import PERMANENT
from ratchet.trainers.job import pod_entrypoint
from ratchet.trainers.job.pod_environment import completed, umask_of
from tests.needs import Need, lacks

ROOT = Path(__file__).resolve().parents[4]
SERVICE = 1000
"""User and group of the service."""
WRITES = """
import os, sys
from pathlib import Path
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.trainers.job.pod_environment import umask_of

run = Path.cwd()
os.umask(umask_of(run))
(run / "i1").mkdir()
FolderArtifacts(run / "artifacts").put(b"result")
(run / "i1" / "log").write_text("line")
"""
"""Writes files as a pod does."""


@pytest.mark.parametrize(("own", "whole"), [("/venv/cudnn/lib", "/a:/b:/venv/cudnn/lib"), ("", "/a:/b"), (None, "/a:/b")])
def test_the_library_path_of_the_image_is_kept(own: str | None, whole: str) -> None:
    given = {"RATCHET_LIBRARY_PATH": "/a:/b"} | ({} if own is None else {"LD_LIBRARY_PATH": own})
    assert completed(given)["LD_LIBRARY_PATH"] == whole


def test_an_environment_without_additions_is_unchanged() -> None:
    given = {"LD_LIBRARY_PATH": "/x", "NCCL_NET": "gIB"}
    assert completed(given) == given


def test_the_script_of_a_network_plugin_sets_variables_of_nccl_only(tmp_path: Path) -> None:
    script = tmp_path / "set_nccl_env.sh"
    script.write_text('echo configured\nNCCL_IB_TC=53\nexport NCCL_TEXT="$NCCL_NET two\nlines"\nexport PATH=/nowhere:$PATH\n')
    given = {"PATH": os.environ["PATH"], "NCCL_NET": "gIB", "NCCL_IB_TC": "52", "RATCHET_ENVIRONMENT_SCRIPT": str(script)}
    assert completed(given) == {**given, "NCCL_IB_TC": "53", "NCCL_TEXT": "gIB two\nlines"}


@pytest.mark.parametrize("text", [None, "exit 3"])
def test_a_pod_whose_script_is_missing_or_fails_does_not_start(tmp_path: Path, text: str | None) -> None:
    script = tmp_path / "set_nccl_env.sh"
    if text:
        script.write_text(text)
    pod = {"RATCHET_FIRST_INCARNATION": "1", "RATCHET_TASK": "worker", "VC_TASK_INDEX": "0"}
    given = {**os.environ, **pod, "RATCHET_ENVIRONMENT_SCRIPT": str(script), "PYTHONPATH": str(ROOT)}
    with pytest.raises(Permanent, match=r"set_nccl_env\.sh"):
        completed(given)
    command = [sys.executable, "-m", "ratchet.trainers.job.pod_entrypoint"]
    done = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == PERMANENT
    assert "set_nccl_env.sh" in done.stderr


def test_files_of_a_job_are_private_to_its_user(tmp_path: Path) -> None:
    assert umask_of(tmp_path) == 0o077


@pytest.mark.slow
def test_a_pod_that_runs_as_root_writes_files_that_the_service_can_use(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        lacks(Need.ROOT)
    run = tmp_path / "a1"
    run.mkdir(mode=0o750)
    os.chown(run, SERVICE, SERVICE)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(folder.stat().st_mode | 0o005)
    pod = {"cwd": run, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "group": SERVICE, "extra_groups": []}
    subprocess.run([sys.executable, "-c", WRITES], check=True, **pod)  # type: ignore[call-overload]
    written = [path for path in run.rglob("*") if path.is_file()]
    assert len(written) >= 2
    assert {path.stat().st_uid for path in written} == {0}
    assert not any(path.stat().st_mode & 0o007 for path in run.rglob("*")), "other users have no access"
    use = ["sh", "-c", "find . -type f | xargs cat > /dev/null && rm -r i1 artifacts"]
    subprocess.run(use, cwd=run, user=SERVICE, group=SERVICE, extra_groups=[], check=True)


def test_rays_ports_do_not_collide_with_those_of_the_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    told = {"RATCHET_FIRST_INCARNATION": "1", "RATCHET_TASK": "head", "RATCHET_BACKEND": "nemo-rl", "RATCHET_GPUS": "8"}
    entry = pod_entrypoint.PodEntrypoint({**os.environ, **told, "VC_TASK_INDEX": "0", "MASTER_PORT": "6379"})
    commands: list[list[str]] = []
    monkeypatch.setattr(entry, "_attend", lambda command: commands.append(command) or 1)  # type: ignore[func-returns-value]
    monkeypatch.setattr(pod_entrypoint, "PEER_SECONDS", 0.0)
    monkeypatch.setattr(pod_entrypoint, "_RAY", ["true"])
    entry._head()
    named = dict(option.removeprefix("--").split("=") for option in commands[0] if "-port=" in option or "--port=" in option)
    wanted = {"port", "node-manager-port", "object-manager-port", "min-worker-port", "max-worker-port"}
    assert wanted <= set(named), "Ray takes any free port for one that is not named"
    fixed = [int(value) for name, value in named.items() if "worker-port" not in name]
    workers = range(int(named["min-worker-port"]), int(named["max-worker-port"]) + 1)
    assert len(set(fixed)) == len(fixed)
    assert not set(fixed) & set(workers)
    for taken in (range(11_001, 20_001), range(20_001, 25_000), range(25_000, 28_001), range(32_768, 61_000)):
        assert not set(taken) & {*fixed, *workers}, "the release uses these ports itself"
