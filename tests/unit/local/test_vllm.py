"""Tests of the vLLM launcher with a stand-in for the `vllm` program, which has its command line, its /health and its chat route."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.contracts.model import model_ref
from ratchet.contracts.serving import ModelVersion
from ratchet.local.server import VllmServer
from ratchet.local.vllm import serve_command
from ratchet.runtime.artifacts import FolderArtifacts
from tests.waiting import until

STAND_IN = """#!{python}
import argparse, json, time
from http.server import BaseHTTPRequestHandler, HTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("verb", choices=["serve"])
parser.add_argument("model")
parser.add_argument("--served-model-name", required=True, nargs="+")
parser.add_argument("--host", required=True)
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--max-model-len", type=int)
args = parser.parse_args()
time.sleep(0.5)


class Handler(BaseHTTPRequestHandler):
    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({{}})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = f"{{asked['model']}} {{' '.join(args.served_model_name)}} {{args.max_model_len}}"
        self.answer({{"choices": [{{"message": {{"content": text}}}}]}})

    def log_message(self, *_):
        pass


HTTPServer((args.host, args.port), Handler).serve_forever()
"""


@pytest.fixture
def version(tmp_path: Path) -> ModelVersion:
    """Return a model version whose files are in the artifact store."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    (model / "config.json").write_text("{}")
    ref = model_ref(model, FolderArtifacts(tmp_path / "artifacts").put_folder(model))
    return ModelVersion(line="l", number=1, tag="v-one", model=ref, cycle=None)


def server(folder: Path, **options: object) -> VllmServer:
    """Return a server with these options, for the test's folders."""
    return VllmServer(folder / "serving", FolderArtifacts(folder / "artifacts"), "assistant", **options)


@pytest.mark.slow
def test_a_version_is_served_found_again_and_stopped(tmp_path: Path, version: ModelVersion) -> None:
    program = tmp_path / "vllm"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    options = {"executable": str(program), "arguments": ["--max-model-len", "64"]}
    endpoint = server(tmp_path, **options).ensure(version)
    try:
        body = {"model": endpoint.model, "messages": [{"role": "user", "content": "hello"}]}
        reply = httpx.post(f"{endpoint.url}/v1/chat/completions", json=body, timeout=10, trust_env=False)
        assert reply.json()["choices"][0]["message"]["content"] == "v-one v-one assistant 64"
        assert server(tmp_path, **options).ensure(version) == endpoint
    finally:
        server(tmp_path, **options).stop("v-one")
    assert server(tmp_path, **options).running() == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{endpoint.url}/health", trust_env=False)


@pytest.mark.slow
def test_without_vllm_the_error_names_a_remedy(tmp_path: Path, version: ModelVersion) -> None:
    with pytest.raises(Permanent, match=r"install vLLM, or set serving\.options\.executable"):
        server(tmp_path, executable="no-such-program").ensure(version)


def test_the_error_for_an_unknown_option_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="arguments"):
        server(tmp_path, argumnts=[])


def test_the_server_listens_on_loopback_only() -> None:
    argv = serve_command("m", ("n", "assistant"), 8000, "vllm", ["--x"])
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    assert argv[argv.index("--served-model-name") + 1 :][:2] == ["n", "assistant"]


@pytest.mark.slow
def test_what_a_killed_program_leaves_running_is_ended(tmp_path: Path, version: ModelVersion) -> None:
    """vLLM's engine survives its API server."""
    program, left = tmp_path / "vllm", tmp_path / "engine.pid"
    engine = (
        f"import subprocess, sys\nfrom pathlib import Path\nPath({str(left)!r}).write_text(str(subprocess.Popen(['sleep', '600']).pid))\n"
    )
    program.write_text(STAND_IN.format(python=sys.executable).replace("import argparse", f"{engine}import argparse", 1))
    program.chmod(0o755)
    endpoint = server(tmp_path, executable=str(program)).ensure(version)
    try:
        port = int(endpoint.url.rsplit(":", 1)[1])
        api = next(one.pid for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN and one.laddr.port == port)
        assert api is not None
        os.kill(api, signal.SIGKILL)
        until(
            lambda: not psutil.pid_exists(int(left.read_text())) or psutil.Process(int(left.read_text())).status() == psutil.STATUS_ZOMBIE
        )
        until(lambda: server(tmp_path, executable=str(program)).running() == [])
    finally:
        server(tmp_path, executable=str(program)).stop(version.tag)
