"""Reads the commands that a page tells its reader to run.

A comment above each shell block says where it runs, or why no test runs it:

    <!-- install -->                        the installation, which `make wheel` and the tests' own environment replace
    <!-- terminal 1 -->                     in this terminal; each command must succeed
    <!-- terminal 1, may fail: REASON -->   its exit codes do not matter
    <!-- not run: REASON -->
    <!-- write PATH -->                     above a block of any other language: the reader writes it into this file
    <!-- shown -->                          above a text: the terminals have shown each of its lines

A comment of its own in front of the first block that runs says where the page begins: `<!-- after quickstart -->` (in the folder of the
quickstart, whose service is stopped), `<!-- with the quickstart's model -->` (in a new folder with `model`, for an example a copy of its
folder), `<!-- in this folder -->` (in a copy of the folder of the page), `<!-- in a new folder -->`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLLOWED = [ROOT / "README.md", *sorted((ROOT / "loops").rglob("*.md")), *sorted((ROOT / "docs" / "howto").glob("*.md"))]
"""The pages whose shell blocks all have a mark, besides the quickstart."""
AFTER_QUICKSTART, WITH_MODEL = "after quickstart", "with the quickstart's model"
IN_FOLDER, NEW_FOLDER = "in this folder", "in a new folder"
_FENCE = re.compile(
    r"^(?P<indent> *)(?:<!-- (?P<mark>[^\n]+?) -->\n(?P=indent))?```(?P<language>\S*)[^\n]*\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_TERMINAL = re.compile(r"terminal (?P<number>[12])(?P<may_fail>, may fail: .+)?")
_BEGIN = re.compile(rf"^<!-- ({AFTER_QUICKSTART}|{WITH_MODEL}|{IN_FOLDER}|{NEW_FOLDER}) -->$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    mark: str
    """The comment above it; empty without one."""
    language: str
    text: str

    @property
    def commands(self) -> tuple[str, ...]:
        """Its lines."""
        return tuple(self.text.splitlines())

    @property
    def terminal(self) -> int | None:
        """Number of the terminal in which it runs, or None."""
        match = _TERMINAL.fullmatch(self.mark)
        return int(match["number"]) if match else None

    @property
    def may_fail(self) -> bool:
        """Whether its exit codes do not matter."""
        match = _TERMINAL.fullmatch(self.mark)
        return bool(match and match["may_fail"])

    @property
    def file(self) -> str | None:
        """Path of the file that the reader writes, or None."""
        return self.mark.removeprefix("write ") if self.mark.startswith("write ") else None

    @property
    def not_run(self) -> str | None:
        """Why no test runs it, or None."""
        return self.mark.removeprefix("not run: ") if self.mark.startswith("not run: ") else None


def blocks(page: Path) -> list[Block]:
    """Return all fenced blocks of a page in their order, without their indentation."""
    found = []
    for match in _FENCE.finditer(page.read_text(encoding="utf-8")):
        indent = len(match["indent"])
        text = "".join(line[indent:] if line.strip() else line for line in match["body"].splitlines(keepends=True))
        found.append(Block(match["mark"] or "", match["language"], text))
    return found


def begin(page: Path) -> str | None:
    """Return where the page begins: one of the constants above, or None if it names no place."""
    found = _BEGIN.search(page.read_text(encoding="utf-8"))
    return found[1] if found else None


def runs(page: Path) -> bool:
    """Return whether a block of the page runs."""
    return any(block.terminal is not None for block in blocks(page))


def flaws(page: Path) -> list[str]:
    """Return the blocks of a page whose mark is missing or unknown, in words."""
    found = []
    for block in blocks(page):
        if not block.language:
            found.append(f"a block has no language (sh for commands, text for others): {block.text[:60]!r}")
        elif block.language == "sh" and block.terminal is None and not block.not_run and block.mark != "install":
            found.append(f"a block of commands has no comment that says where it runs, or why it does not: {block.text[:60]!r}")
        elif block.terminal is not None and block.language == "sh" and begin(page) is None and page.name != "quickstart.md":
            found.append("the page does not say where it begins")
        elif block.language in ("bash", "console", "shell"):
            found.append(f"{block.language}: a block of commands has the language sh")
    return found


def command_lines(page: Path) -> list[list[str]]:
    """Return the arguments of every `ratchet` command in the shell blocks of a page."""
    found = []
    for block in blocks(page):
        if block.language == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                words = _words(line)
                found += [words[at + 1 :] for at, word in enumerate(words[:1]) if word == "ratchet"]
    return found


def _words(line: str) -> list[str]:
    """Return the words of the first command of a line: up to a pipe, a redirection or an operator. Settings of variables are left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>&;<")
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set("|>&;<"):
                break
            if words or not re.fullmatch(r"[A-Z_]+=.*", word):
                words.append(word)
    except ValueError:  # a line of a document inside the block, not a command
        return []
    return words
