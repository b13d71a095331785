"""A judge that listens on the loopback and fails for some requests, and the distribution of the scorer that asks it.

Its score depends only on the answer, so a test knows in advance which answers stay unscored. The kind of failure also depends on the
prompt.
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
"""Scores of answers by their last word. For any other last word, the judge fails."""
SOURCE = Path(__file__).with_name("judged_over_http.py")
DISTRIBUTION = "example-judge"


def verdict(answer: str) -> float | None:
    """Return the score of an answer, or None if the judge fails for it."""
    return SCORES.get((answer.split() or [""])[-1])


class Judge(ThreadingHTTPServer):
    """HTTP server of the judge, on a free port of the loopback."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.away = 0
        """Number of the next requests that are refused, whatever their content."""
        self.asked: list[tuple[str, float | None]] = []
        """(answer, score) of every request that was not refused, in order of arrival."""
        self.kinds = sorted(WAYS.keys() - {"silent"})
        """Kinds of failures that may occur. With silence, the scorer's timeout decides, which must be short then."""
        self.failed: set[str] = set()
        """Kinds of failures that have occurred so far."""
        self.closing = threading.Event()
        self._turn = threading.Lock()

    def says(self, question: Mapping[str, Any]) -> float | str:
        """Return a score, or a kind of failure from `kinds`."""
        score = verdict(question["answer"])
        kind = self.kinds[zlib.crc32(json.dumps(question).encode()) % len(self.kinds)]
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
        self.reply(503, "no judge is available")

    def broken(self) -> None:
        self.reply(200, '{"score": 0.')

    def beyond(self) -> None:
        self.reply(200, '{"score": 7}')

    def silent(self) -> None:
        self.server.closing.wait(60)

    def log_message(self, *_: Any) -> None:
        """Do nothing, because tests do not need a log of requests."""


WAYS: dict[str, Callable[[_Handler], None]] = {
    "refused": _Handler.refused,
    "broken": _Handler.broken,
    "beyond": _Handler.beyond,
    "silent": _Handler.silent,
}


@contextmanager
def judging() -> Iterator[Judge]:
    """Yield a running judge and stop it afterwards."""
    with Judge() as judge:
        thread = threading.Thread(target=judge.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield judge
        judge.closing.set()
        judge.shutdown()
        thread.join()


def install(site: Path, version: str, more: str = "", source: Path = SOURCE, scorer: str = "JudgedOverHttp") -> Path:
    """Install a scorer's distribution in the folder `site`, as an installer does, and remove the previous version.

    `source` is the file of its module, which has the class `scorer`; `more` is appended to it. Returns the path of the module.
    """
    shutil.rmtree(site, ignore_errors=True)
    info = site / f"{DISTRIBUTION.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    module = site / source.name
    module.write_text(source.read_text() + more)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[ratchet.rewards]\n{source.stem} = {source.stem}:{scorer}\n")
    lines = [f"{path.relative_to(site)},sha256={_hash(path)},{path.stat().st_size}" for path in (module, *sorted(info.iterdir()))]
    (info / "RECORD").write_text("\n".join([*lines, f"{info.name}/RECORD,,"]) + "\n")
    return module


def install_package(site: Path, version: str, rubric: str) -> None:
    """Install the same scorer as a package that also contains a rubric."""
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
