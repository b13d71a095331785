"""Finds the fenced code blocks of an answer in Markdown."""

from __future__ import annotations

from typing import NamedTuple


class CodeBlock(NamedTuple):
    """One block, with the language that its first line names, in lower case; empty if it names none."""

    language: str
    text: str


def code_blocks(text: str) -> list[CodeBlock]:
    """Return the blocks between lines of three or more backticks, in order. A block without an end reaches to the end of the text."""
    blocks: list[CodeBlock] = []
    inside: list[str] | None = None
    fence = language = ""
    for line in text.splitlines():
        mark = line.strip()
        ticks = mark[: len(mark) - len(mark.lstrip("`"))]
        if inside is None:
            if len(ticks) >= 3 and "`" not in mark[len(ticks) :]:
                inside, fence, language = [], ticks, mark[len(ticks) :].strip().lower()
        elif mark == ticks and len(ticks) >= len(fence):
            blocks.append(CodeBlock(language, "\n".join(inside)))
            inside = None
        else:
            inside.append(line)
    return blocks if inside is None else [*blocks, CodeBlock(language, "\n".join(inside))]


def only_block(text: str) -> str:
    """Return the content of the code block of an answer if it has exactly one, otherwise the whole text."""
    blocks = code_blocks(text)
    return blocks[0].text if len(blocks) == 1 else text
