"""The frame of a picture with panels, as SVG: its size, its legend, and where each panel is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

COLUMNS = 3
"""Number of panels in a row."""
_STYLE = "<style>text{font:12px sans-serif;fill:#1b2430}</style>"


def framed(
    panels: Sequence[str], words: Mapping[str, str], colours: Mapping[str, str], size: tuple[int, int], left: int, below: int
) -> str:
    """Return the picture. `words` maps the names of lines to their texts in the legend, and `colours` to their colours.

    `size` is the width and height of a panel with its margins, `left` its left margin, and `below` the space that the legend and the end
    need, all in pixels.
    """
    width, height = COLUMNS * size[0] + 20, -(-len(panels) // COLUMNS) * size[1] + below
    keys = [
        f'<rect x="{left + 190 * at}" y="8" width="12" height="12" fill="{colours[name]}"/>'
        f'<text x="{left + 18 + 190 * at}" y="18">{text}</text>'
        for at, (name, text) in enumerate(words.items())
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">{_STYLE}'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{"".join([*keys, *panels])}</svg>\n'
    )
