"""Reads the commands that a page tells its reader to run: fenced blocks after a comment that names the terminal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^<!-- (?P<where>install|terminal [12]) -->\n```sh\n(?P<commands>.*?)^```$", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^```sh$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """Commands that belong to one terminal, or to the installation."""

    where: str
    commands: tuple[str, ...]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in their order. Raises AssertionError if a shell block names no terminal."""
    text = page.read_text(encoding="utf-8")
    found = [Block(match["where"], tuple(match["commands"].splitlines())) for match in _BLOCK.finditer(text)]
    assert len(found) == len(_FENCE.findall(text)), f"{page}: a block of commands lacks the comment with its terminal"
    return found
