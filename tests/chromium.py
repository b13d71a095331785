"""Drives a page in headless Chromium over the DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.needs import Need, lacks
from tests.waiting import until

_SWITCHES = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
"""Without its sandbox Chromium also runs as root; the pages are those of the project's own service."""


_CUT_OFF = "net::ERR_NETWORK_CHANGED"
"""Chromium ends all requests when an interface of the machine changes, as other tests cause. A page without its scripts stays empty."""


class Page:
    """One page of a running Chromium. It loads again when a change of the machine's network ended the requests for its files."""

    def __init__(self, socket_: ClientConnection) -> None:
        self._socket = socket_
        self._number = 0
        self._is_cut_off = False
        self.call("Network.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and return its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": given}))
        while True:
            answer = json.loads(self._socket.recv(timeout=120))
            if answer.get("id") == self._number:
                return dict(answer.get("result", {}))
            told = answer.get("params", {})
            if told.get("errorText") == _CUT_OFF and told.get("type") in ("Document", "Script", "Stylesheet"):
                self._is_cut_off = True

    def open(self, url: str, width: int = 1280, height: int = 1100) -> None:
        """Open a URL in a window of this size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        self._is_cut_off = False
        until(lambda: self.call("Page.navigate", url=url).get("errorText") != _CUT_OFF, 60, pause=0.5)

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page and return its value; None while the page loads."""
        return self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True).get("result", {}).get("value")

    def enter(self, field: str, value: str) -> None:
        """Wait for the field that a script finds, give it a value, and wait until the page has drawn itself again.

        A form keeps its fields in one object that it copies for each change: a second change before the page is drawn loses the first.
        """
        given = f"""(field => {{
            if (!field) return false;
            Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), 'value').set.call(field, {json.dumps(value)});
            for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, {{bubbles: true}}));
            return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))));
        }})({field})"""
        until(lambda: self.run(given), 120, pause=0.2, why=lambda: self.run("document.body.innerText"))

    def click(self, text: str) -> None:
        """Wait for a button with this text, and click it."""
        found = f"[...document.querySelectorAll('button')].find(one => one.textContent.trim() === {json.dumps(text)} && !one.disabled)"

        def clicked() -> bool:
            if self._is_cut_off:
                self._is_cut_off = False
                self.call("Page.reload")
            return bool(self.run(f"!!{found} && ({found}.click(), true)"))

        until(clicked, 120, pause=0.2, why=lambda: self.run("document.body.innerText"))

    def picture(self, path: Path) -> None:
        """Write the visible part of the page as a PNG file."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """Start Chromium with a profile in `folder` and give its page. Skips the test if Chromium is not installed."""
    program = shutil.which("chromium")
    if program is None:
        lacks(Need.CHROMIUM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, *_SWITCHES, f"--remote-debugging-port={port}", f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = until(lambda: _address(port), 60, pause=0.2)
        with connect(address, max_size=None, open_timeout=30) as socket_:
            yield Page(socket_)
    finally:
        process.terminate()
        process.wait(30)


def _address(port: int) -> str | None:
    """Return the address of the page's debugging socket, or None while Chromium starts."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=5) as answer:
            return next((str(tab["webSocketDebuggerUrl"]) for tab in json.load(answer) if tab["type"] == "page"), None)
    except OSError:
        return None
