"""A server for models that give one canned answer. Each version runs in a process of its own, which survives the service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ratchet.extend import Artifacts, Capabilities, Endpoint, ModelVersion, Retryable


class CannedServer:
    """Serves the answer in the metadata of a model's weights. The option `patience` is the timeout of a start in seconds.

    It answers to every model name, so also to `served_model`.
    """

    capabilities = Capabilities(sampling=True, seed=True, logprobs=False)

    def __init__(self, folder: Path, artifacts: Artifacts, served_model: str, patience: float = 30.0) -> None:  # noqa: ARG002
        self._folder = folder / "canned"
        self._artifacts = artifacts
        self._patience = patience

    def ensure(self, version: ModelVersion) -> Endpoint:
        """Return the endpoint of a version. Raises Retryable if a new process does not answer in time."""
        if found := self._endpoint(version.tag):
            return found
        place = self._folder / version.tag
        model = self._artifacts.fetch(version.model.files, place / "model")
        command = [sys.executable, "-m", "example_plugin.server", str(model), str(place / "process.json")]
        with (place / "log").open("ab") as log:
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        until = time.monotonic() + self._patience
        while time.monotonic() < until:
            if found := self._endpoint(version.tag):
                return found
            time.sleep(0.05)
        raise Retryable(f"the server of {version.tag} does not answer after {self._patience:g} s; see {place / 'log'}")

    def running(self) -> list[Endpoint]:
        """Return the endpoints of all processes that answer."""
        tags = sorted(place.name for place in self._folder.glob("*"))
        return [found for tag in tags if (found := self._endpoint(tag))]

    def stop(self, tag: str) -> None:
        """End the process of a version, if it answers."""
        if self._endpoint(tag):
            os.kill(self._process(tag)["pid"], signal.SIGTERM)
            (self._folder / tag / "process.json").unlink()

    def _process(self, tag: str) -> dict[str, int]:
        try:
            found: dict[str, int] = json.loads((self._folder / tag / "process.json").read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def _endpoint(self, tag: str) -> Endpoint | None:
        """Return the endpoint of a version if its process answers with its own process id."""
        process = self._process(tag)
        if not process:
            return None
        url = f"http://127.0.0.1:{process['port']}"
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:  # noqa: S310 -- always http on loopback
                alive = int(reply.read()) == process["pid"]
        except (OSError, ValueError):
            return None
        return Endpoint(tag=tag, url=url, model=tag) if alive else None


def serve(model: Path, announcement: Path) -> None:
    """Answer every chat request with the canned answer. Writes process id and port to `announcement` when it listens."""
    weights = (model / "model.safetensors").read_bytes()  # a header of JSON behind its length in eight bytes, and no tensors
    answer = json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])["__metadata__"]["answer"]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(str(os.getpid()).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
            self._reply(json.dumps({"object": "chat.completion", "choices": [choice]}).encode())

        def _reply(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do nothing: requests are not logged."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 64

    server = Server(("127.0.0.1", 0), Handler)
    partial = announcement.with_suffix(".partial")
    partial.write_text(json.dumps({"pid": os.getpid(), "port": server.server_address[1]}))
    partial.replace(announcement)
    server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
