"""Finds the fenced code blocks of an answer in Markdown."""

from __future__ import annotations


def code_blocks(text: str) -> list[str]:
    """Return the content of each block between lines of three or more backticks. A block without an end reaches to the end of the text."""
    blocks: list[str] = []
    inside: list[str] | None = None
    fence = ""
    for line in text.splitlines():
        mark = line.strip()
        ticks = mark[: len(mark) - len(mark.lstrip("`"))]
        if inside is None:
            if len(ticks) >= 3 and "`" not in mark[len(ticks) :]:
                inside, fence = [], ticks
        elif mark == ticks and len(ticks) >= len(fence):
            blocks.append("\n".join(inside))
            inside = None
        else:
            inside.append(line)
    return blocks if inside is None else [*blocks, "\n".join(inside)]


def only_block(text: str) -> str:
    """Return the content of the code block of an answer if it has exactly one, otherwise the whole text."""
    blocks = code_blocks(text)
    return blocks[0] if len(blocks) == 1 else text
