"""The images are built from their definitions in a bare Debian, and what runs in the pods starts in them, without root."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.k8s.images.build_commands import IMAGES, definition
from tests.cluster.rig.build import RigError
from tests.cluster.rig.cluster import REPO
from tests.cluster.rig.dockerfile import shell_of
from tests.needs import Need, lacks

PROGRAMS = {
    "ratchet": (
        "ratchet --version",
        "ratchet k8s images --registry registry.example/team | grep -q control-plane",
        "python3 -m ratchet.router.replica --help >/dev/null",
        "python3 -m ratchet.materializer.receive.pod --help >/dev/null",
        "python3 -m prefect version >/dev/null",
        "python3 -c 'import kubernetes, psycopg, boto3, ratchet.k8s.pod.model, ratchet.flows.prefect.serve'",
        "! python3 -c 'import torch' 2>/dev/null",
    ),
    "ratchet-trainer": (
        "python3 -c 'import torch, trl, ratchet.trainers.job.supervisor'",
        "python3 -m ratchet.local.serve --help >/dev/null",
    ),
}
"""Image -> commands that must succeed in it."""


def test_the_steps_of_a_definition_are_understood() -> None:
    text = "ARG LOCK=a.lock\nFROM x\nENV A=1 PATH=/opt/bin:$PATH\nCOPY dist/*.whl /tmp/dist/\n"
    text += "RUN pip install -r ${LOCK} && \\\n  true\nUSER 1000:1000\n"
    script = shell_of(text, {"LOCK": "b.lock"})
    assert "export PATH=/opt/bin:$PATH" in script
    assert "mkdir -p /tmp/dist/\ncp -r dist/*.whl /tmp/dist/" in script
    assert "pip install -r b.lock &&" in script
    assert script.endswith("USER_OF_IMAGE=1000")
    with pytest.raises(RigError, match="VOLUME"):
        shell_of("VOLUME /x", {})
    for image in IMAGES:
        shell_of(definition(image), {})


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_an_image_is_built_and_runs_without_root(name: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        lacks(Need.ROOT, "a bare Debian needs it")
    if shutil.which("debootstrap") is None:
        lacks(Need.CONTAINERD, "debootstrap is not installed; `make tools` installs it")
    image = next(one for one in IMAGES if one.name == name)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(tmp_path / "dist"), str(REPO)]
    subprocess.run(build, check=True, capture_output=True)
    steps = shell_of(definition(image), {})
    tried = "\n".join(f"echo '+ {index}'; {command}" for index, command in enumerate(PROGRAMS[name]))
    as_user = f'export HOME=/tmp; cd /tmp; set -eu; test "$(id -u)" = 1000\n{tried}'
    drop = "exec setpriv --reuid=$USER_OF_IMAGE --regid=1000 --clear-groups"
    script = f"mkdir -p dist; cp /src/dist/* dist/\n{steps}\n{drop} sh -c {shlex.quote(as_user)}"
    environment = {**os.environ, "SUITE": "bookworm", "DIST": str(tmp_path / "dist")}
    command = ["sh", str(REPO / "tests" / "bare.sh"), "sh", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=REPO, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
