"""Writes small distributions with entry points into a folder, as an installer leaves them there."""

from __future__ import annotations

from pathlib import Path


def distribution(site: Path, name: str, version: str = "1.0", modules: dict[str, str] | None = None, **groups: dict[str, str]) -> None:
    """Install a distribution in the folder `site`.

    `modules` maps file names to their content. Each further keyword is an entry point group without `ratchet.`, as a map from names to
    targets.
    """
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    sections = ((f"[ratchet.{group}]", *(f"{key} = {target}" for key, target in entries.items())) for group, entries in groups.items())
    (info / "entry_points.txt").write_text("\n".join(line for section in sections for line in section) + "\n")
    for file, text in (modules or {}).items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(text)
