"""Runs commands in a network namespace without a way out and records every address outside of it that a Python process asks for.

A `sitecustomize` module on the path installs an audit hook in every Python process, including detached ones. The hook also sees calls
that bypass the module `socket`. Libraries in other languages are not recorded, but they cannot reach anything either.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from tests.needs import Need, lacks

CI_VARIABLES = ("CI", "GITHUB_ACTIONS", "GITLAB_CI", "JENKINS_URL", "BUILDKITE", "CIRCLECI", "TF_BUILD")
"""Variables of CI systems. Libraries send no statistics where they find one."""

_RECORDER = """
import os, sys

def _local(host):
    host = host.decode() if isinstance(host, bytes) else host
    return host in (None, "", "localhost", "0.0.0.0", "::", "::1") or str(host).startswith("127.")

def _hook(event, args):
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        host = args[0]
    elif event in ("socket.connect", "socket.sendto", "socket.sendmsg") and isinstance(args[1], tuple):
        host = args[1][0]
    else:
        return
    if not _local(host):
        line = f"{event} {host!r} by {' '.join(sys.orig_argv[1:])[:200]}\\n"
        file = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, line.encode())
        os.close(file)

sys.addaudithook(_hook)
"""
_DRIVER = """
import fcntl, json, socket, struct, subprocess, sys

with socket.socket() as any_socket:  # loopback is down in a new namespace
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH", b"lo", 0x41))  # SIOCSIFFLAGS: IFF_UP | IFF_RUNNING
for command in json.loads(sys.argv[1]):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    print(json.dumps([command[1:], done.returncode, done.stdout[-2000:], done.stderr[-2000:]]))
"""


def run_offline(commands: Sequence[Sequence[str]], folder: Path, environment: dict[str, str]) -> tuple[list[tuple[int, str]], list[str]]:
    """Run the commands one after the other in one new network namespace that has only loopback.

    Variables by which libraries recognise tests or CI are removed from `environment`. Skips the test without the right to create a
    namespace. Returns the exit code and output of each command, and the outside addresses that any process asked for.
    """
    if os.geteuid() != 0 or subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True).returncode != 0:
        lacks(Need.ROOT, "a network namespace needs it")
    site, found = folder / "site", folder / "lookups.txt"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"FILE = {str(found)!r}\n{textwrap.dedent(_RECORDER)}")
    kept = {name: value for name, value in environment.items() if not name.startswith("PYTEST_") and name not in CI_VARIABLES}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), kept.get("PYTHONPATH")]))
    driver = ["unshare", "-n", sys.executable, "-c", _DRIVER, json.dumps([list(command) for command in commands])]
    ran = subprocess.run(driver, cwd=folder, env=kept, capture_output=True, text=True, check=True, timeout=240)
    results = [(code, f"{command}\n{out}\n{error}") for command, code, out, error in map(json.loads, ran.stdout.splitlines())]
    return results, found.read_text().splitlines() if found.exists() else []
