"""Takes the pictures in docs/images from the report of a finished demo: `make screenshots`. Needs Chromium."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 1280, 900


def take(page: Path, out: Path) -> None:
    """Write the top of an HTML page as a PNG file of 1280 x 900 pixels. Raises RuntimeError if Chromium is missing or fails."""
    program = shutil.which("chromium")
    if program is None:
        raise RuntimeError("Chromium is not installed; `make tools` installs it")
    out.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        # Without its sandbox Chromium also runs as root; the page is the project's own.
        switches = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        command = [program, *switches, f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={out}", page.absolute().as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not out.exists():
        raise RuntimeError(f"Chromium took no picture of {page}: {done.stderr[-500:]}")


if __name__ == "__main__":
    home = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".ratchet-demo"
    report = home / "reports" / "kubectl.html"
    if not report.exists():
        sys.exit(f"{report} does not exist; run `make demo` first")
    take(report, IMAGES / "report.png")
