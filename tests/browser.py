"""Opens a page of the disk in Chromium and measures its layout."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.needs import Need, lacks

PHONE = 390
"""Width of a common phone in CSS pixels."""

_WRAPPER = """<iframe id="page" src="{uri}" style="width:{width}px;height:800px;border:0"></iframe>
<script>
const frame = document.getElementById("page");
frame.onload = () => document.body.textContent = "content width " + frame.contentDocument.documentElement.scrollWidth;
</script>"""
"""A window of Chromium cannot be as narrow as a phone, but a frame can."""


def content_width(page: Path, folder: Path, window: int = PHONE) -> int:
    """Returns the width of the page's content in CSS pixels, in a window of `window` pixels. More means that the page scrolls sideways.

    Skips the test without Chromium. Writes temporary files to `folder`.
    """
    program = shutil.which("chromium")
    if program is None:
        lacks(Need.CHROMIUM)
    wrapper = folder / "wrapper.html"
    wrapper.write_text(_WRAPPER.format(uri=page.as_uri(), width=window))
    # Without its sandbox Chromium also runs as root; the pages are the project's own.
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files"]
    command = [program, *switches, f"--user-data-dir={folder / 'profile'}", "--dump-dom", wrapper.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    found = re.search(r"content width (\d+)<", done.stdout)
    assert found, done.stderr[-2000:]
    return int(found[1])
