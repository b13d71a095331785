"""Tests of the documentation site: it builds without warnings, loads nothing from other hosts, and the README leads to every page."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.site import PUBLISHED
from tests.browser import PHONE, content_width

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.relative_to(ROOT) for pattern in ("*.md", "docs/**/*.md") for path in ROOT.glob(pattern))


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Builds the site of the repository in `source` into the folder `site`."""
    command = [sys.executable, "-m", "properdocs", "build", "--config-file", str(source / "properdocs.yml"), "--site-dir", str(site)]
    return subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_site_contains_every_page(site: Path) -> None:
    built = {path.relative_to(site) for path in site.rglob("*.html")}
    home = {Path("README.md"): Path("index.html")}
    assert [page for page in PAGES if home.get(page, page.with_suffix(".html")) not in built] == []


def test_each_problem_of_a_page_fails_the_build(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for path in {path for pattern in (*PUBLISHED, "properdocs.yml", "docs/site.py") for path in ROOT.glob(pattern)}:
        (source / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, source / path.relative_to(ROOT))
    (source / "docs" / "new.md").write_text("# New\n\n[a page](absent.md), [a section](glossary.md#absent)\n")
    done = build(source, tmp_path / "site")
    assert done.returncode != 0
    for problem in ('not included in the "nav"', "'absent.md'", "'glossary.md#absent'"):
        assert problem in done.stderr, done.stderr


LOADS = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b[^>]*\bhref=["']?(?:https?:)?//"""
    r"""|(?:\burl\(|@import)\s*["']?(?:https?:)?//"""
)
"""Markup or CSS that makes a browser load something from another host. A link to another host loads nothing."""


@pytest.mark.parametrize(
    ("text", "loads"),
    [
        ('<script src="https://other.example/a.js">', True),
        ('<link rel="stylesheet" href="//other.example/a.css">', True),
        ("@font-face{src:url(https://other.example/a.woff2)}", True),
        ("@import '//other.example/a.css';", True),
        ('<img alt="a" src="docs/a.png">', False),
        ('<a href="https://other.example">', False),
    ],
)
def test_loading_from_another_host_is_found(text: str, loads: bool) -> None:
    assert bool(LOADS.search(text)) == loads


def test_site_loads_nothing_from_other_hosts(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert {path.suffix for path in files} == {".html", ".css"}
    found = {path.relative_to(site): text.group() for path in files if (text := LOADS.search(path.read_text()))}
    assert found == {}


@pytest.mark.parametrize("page", ["index.html", "docs/index.html", "docs/quickstart.html", "docs/reference/loop-file.html"])
def test_page_fits_a_phone(page: str, site: Path, tmp_path: Path) -> None:
    assert content_width(site / page, tmp_path) == PHONE


def links(page: Path) -> set[Path]:
    """Returns the files to which a page links, relative to the repository root."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
    return {(ROOT / page).parent.joinpath(target).resolve().relative_to(ROOT) for target in targets}


def test_the_readme_leads_to_every_page() -> None:
    """Within three links: from README to the index, to the index of a folder, to the page."""
    reached = {Path("README.md")}
    for _ in range(3):
        reached |= {link for page in reached if page.suffix == ".md" for link in links(page)}
    assert [page for page in PAGES if page not in reached] == []
