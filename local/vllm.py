"""Runs `vllm serve` for one model version, says when it answers, and ends with it. Knows vLLM's command line and nothing else.

`python -m local.vllm MODEL NAME EXECUTABLE [ARGUMENT …]`. vLLM has no ready signal of its own: its /health is asked until it
answers. SIGTERM is handed on, so that requests in flight are finished by vLLM's own rules.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import httpx

from local.service import announce


def command(model: str, name: str, port: int, executable: str, arguments: Sequence[str]) -> list[str]:
    """argv of `vllm serve`, loopback only."""
    return [executable, "serve", model, "--served-model-name", name, "--host", "127.0.0.1", "--port", str(port), *arguments]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def main(arguments: Sequence[str]) -> int:
    """The exit code of vLLM; 78 where it is not installed."""
    model, name, executable, *more = arguments
    if shutil.which(executable) is None:
        sys.stderr.write(f"there is no program {executable!r}; install vLLM, or set serving.options.executable to its path\n")
        return 78
    port = free_port()
    child = subprocess.Popen(command(model, name, port, executable, more), stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    while child.poll() is None and not healthy(port):
        time.sleep(0.5)
    if child.poll() is None:
        announce(port)
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
