"""A judge that really listens on the loopback and fails by what it is asked, and the distribution of the scorer that asks it.

What it says follows from the answer alone, so that a test knows beforehand which answers nobody will score; how it fails, from the
prompt as well.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SCORES = {"yes": 1.0, "one": 1.0, "a": 0.75, "up": 0.5, "three": 0.25, "no": 0.0, "two": 0.0, "the": 0.0}
"""What an answer with this last word is worth; with any other, the judge fails on it."""
SOURCE = Path(__file__).with_name("judged_over_http.py")
DISTRIBUTION = "example-judge"


def verdict(answer: str) -> float | None:
    """The score, or None where the judge fails."""
    return SCORES.get((answer.split() or [""])[-1])


class Judge(ThreadingHTTPServer):
    """Answers on a port of its own."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.away = 0
        """So many of the next requests are refused, whatever they ask."""
        self.asked: list[tuple[str, float | None]] = []
        """(answer, score) of every request that was not refused, in the order in which they came."""
        self.failed: set[str] = set()
        """Ways in which it has failed so far."""
        self.closing = threading.Event()
        self._turn = threading.Lock()

    def says(self, question: Mapping[str, Any]) -> float | str:
        """A score, or the name of a way to fail."""
        score = verdict(question["answer"])
        kind = sorted(WAYS)[zlib.crc32(json.dumps(question).encode()) % len(WAYS)]
        with self._turn:
            if self.away:
                self.away -= 1
                return "refused"
            self.asked.append((question["answer"], score))
            if score is None:
                self.failed.add(kind)
        return kind if score is None else score


class _Handler(BaseHTTPRequestHandler):
    server: Judge

    def do_POST(self) -> None:
        said = self.server.says(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if isinstance(said, str):
            WAYS[said](self)
        else:
            self.reply(200, json.dumps({"score": said}))

    def reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def refused(self) -> None:
        self.reply(503, "no judge is awake")

    def broken(self) -> None:
        self.reply(200, '{"score": 0.')

    def beyond(self) -> None:
        self.reply(200, '{"score": 7}')

    def silent(self) -> None:
        self.server.closing.wait(60)

    def log_message(self, *_: Any) -> None:
        """Tests have no use for a line per request."""


WAYS: dict[str, Callable[[_Handler], None]] = {
    "refused": _Handler.refused,
    "broken": _Handler.broken,
    "beyond": _Handler.beyond,
    "silent": _Handler.silent,
}


@contextmanager
def judging() -> Iterator[Judge]:
    """A judge at work; gone afterwards."""
    with Judge() as judge:
        thread = threading.Thread(target=judge.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield judge
        judge.closing.set()
        judge.shutdown()
        thread.join()


def install(site: Path, version: str, more: str = "") -> Path:
    """The scorer's distribution in the folder `site`, as an installer leaves it, in place of the one before; its module. `more`: what
    this version has below the first one's source."""
    shutil.rmtree(site, ignore_errors=True)
    info = site / f"{DISTRIBUTION.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    module = site / SOURCE.name
    module.write_text(SOURCE.read_text() + more)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[ratchet.rewards]\n{SOURCE.stem} = {SOURCE.stem}:JudgedOverHttp\n")
    lines = [f"{path.relative_to(site)},sha256={_hash(path)},{path.stat().st_size}" for path in (module, *sorted(info.iterdir()))]
    (info / "RECORD").write_text("\n".join([*lines, f"{info.name}/RECORD,,"]) + "\n")
    return module


def install_package(site: Path, version: str, rubric: str) -> None:
    """The same scorer as a package that holds a rubric beside it."""
    install(site, version)
    package = site / "example_judge"
    package.mkdir()
    (package / "__init__.py").touch()
    (site / SOURCE.name).rename(package / SOURCE.name)
    (package / "rubric.txt").write_text(rubric)
    (info,) = site.glob("*.dist-info")
    (info / "entry_points.txt").write_text(f"[ratchet.rewards]\n{SOURCE.stem} = example_judge.{SOURCE.stem}:JudgedOverHttp\n")


def _hash(path: Path) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
