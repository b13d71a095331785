"""Hooks of the documentation site: `properdocs.yml` names this file, and ProperDocs calls the functions during a build.

The site contains the files under their paths in the repository, and its headings get the anchors that code forges give them. Relative
links therefore work in both places.
"""

from __future__ import annotations

import re
from pathlib import Path

from properdocs.config.defaults import ProperDocsConfig
from properdocs.structure.files import File, Files
from pygments.formatters import HtmlFormatter

PUBLISHED = ("*.md", "LICENSE", "docs/**/*.md", "docs/**/*.png", "docs/**/*.svg", "docs/site.css", "loops/README.md", "loops/*/*")
"""Files of the site, as patterns relative to the repository root."""


def on_config(config: ProperDocsConfig) -> ProperDocsConfig:
    """Set the function that makes an anchor of a heading."""
    config.mdx_configs["toc"] = {"slugify": anchor}
    return config


def on_files(files: Files, config: ProperDocsConfig) -> Files:
    """Replace the files of the docs folder by the published files of the repository, and add the style of highlighted code."""
    root = Path(config.config_file_path).parent
    kept = [file for file in files if file.src_dir != config.docs_dir]
    paths = sorted({path.relative_to(root).as_posix() for pattern in PUBLISHED for path in root.glob(pattern)})
    published = [File(path, str(root), config.site_dir, config.use_directory_urls) for path in paths]
    style = File.generated(config, "pygments.css", content=HtmlFormatter().get_style_defs(".codehilite"))
    return Files([*kept, *published, style])


def anchor(heading: str, separator: str) -> str:
    """Return the anchor of a heading as code forges build it: repeated separators are kept."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)
