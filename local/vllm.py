"""Runs `vllm serve` for one model version, announces when it is ready, and exits when it exits.

Run as `python -m ratchet.local.vllm MODEL NAME… -- EXECUTABLE [ARGUMENT …]`. vLLM has no ready signal, so this process polls its
/health. SIGTERM is forwarded, so that vLLM handles requests in flight by its own rules.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import httpx
import psutil

from ratchet.contracts.jobs.exit_codes import PERMANENT
from ratchet.runtime.certificates import certificates
from ratchet.runtime.serving.announcement import BEAT_SECONDS, announce, beat


def serve_command(model: str, names: Sequence[str], port: int, executable: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line of `vllm serve`, which listens on loopback only and answers to all `names`."""
    return [executable, "serve", model, "--served-model-name", *names, "--host", "127.0.0.1", "--port", str(port), *arguments]


def free_port() -> int:
    """Return a TCP port that is currently free on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def vllm_is_healthy(port: int) -> bool:
    """Return whether the server on `port` answers /health with status 200."""
    try:
        url = f"http://127.0.0.1:{port}/health"
        return httpx.get(url, timeout=2, trust_env=False, verify=certificates(url)).status_code == 200
    except httpx.HTTPError:
        return False


def main(arguments: Sequence[str]) -> int:
    """Run vLLM and return its exit code, or PERMANENT if the program is not found."""
    end = list(arguments).index("--")
    (model, *names), (executable, *more) = arguments[:end], arguments[end + 1 :]
    if shutil.which(executable) is None:
        sys.stderr.write(f"program {executable!r} not found; install vLLM, or set serving.options.executable to its path\n")
        return PERMANENT
    port = free_port()
    child = subprocess.Popen(serve_command(model, names, port, executable, more), stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    while child.poll() is None and not vllm_is_healthy(port):
        time.sleep(0.5)
    if child.poll() is None:
        beat()
        announce(port)
    while True:
        try:
            code = child.wait(BEAT_SECONDS)
        except subprocess.TimeoutExpired:
            beat()
        else:
            end_the_rest()
            return code


def end_the_rest() -> None:
    """Kill the remaining processes of this process group, if this process leads it.

    vLLM's engine is a process of its own. It survives a killed API server, and would keep the memory that the next start needs.
    """
    own = os.getpid()
    if os.getpgrp() != own:
        return
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess, psutil.AccessDenied):
            if process.pid != own and os.getpgid(process.pid) == own:
                process.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
