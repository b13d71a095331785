"""Texts on the terminal. A person or a model may have written a text, so its control characters are shown and have no effect."""

from __future__ import annotations

from typing import Any, Final

import click

CONTROL: Final[dict[int, str]] = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"},
    0x0D: "\n",  # the next text would overwrite the line
    **{code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))},
}
"""Character -> the text shown in its place. C0 and C1 control characters can control a terminal (ECMA-48, section 5). Bidirectional
controls change the order in which a text is shown (Unicode Standard Annex 9, section 2)."""


def visible(text: str) -> str:
    """Return the text with its control characters replaced by escapes, because a person or a model may have written it."""
    return text.translate(CONTROL)


def show(text: str = "", newline: bool = True, error: bool = False, **style: Any) -> None:
    """Print a text on standard output, or on standard error if `error`. `style` are the arguments of `click.style`."""
    click.secho(visible(text), nl=newline, err=error, **style)


def say(text: str) -> None:
    """Print a message on standard error, because standard output is reserved for results."""
    show(text, error=True)
