"""Counts of the reasons why requests to a model failed: few of them, also if each text has other numbers. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

MOST_REASONS = 5
"""Maximum number of reasons that are counted by themselves."""
OTHER_REASONS = "other reasons"
"""Stands for the rarer reasons."""
_NUMBER = re.compile(r"(?<=[ (])\d[\d.,]*")


def counted(reasons: Iterable[str]) -> dict[str, int]:
    """Return reason -> how often it occurs, the most frequent first.

    Reasons that differ only in numbers count as one, with the text of the first. The rarest ones beyond MOST_REASONS count together.
    """
    texts: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for reason in reasons:
        form = _NUMBER.sub("0", reason)
        texts.setdefault(form, reason)
        counts[form] += 1
    listed = counts.most_common()
    kept = MOST_REASONS if len(listed) <= MOST_REASONS else MOST_REASONS - 1
    found = {texts[form]: n for form, n in listed[:kept]}
    rest = sum(n for _, n in listed[kept:])
    return found | ({OTHER_REASONS: rest} if rest else {})


def told(counts: Mapping[str, int]) -> str:
    """Return the reasons with their counts as one text, for example `HTTP 500: CUDA out of memory (14)`; empty text without any."""
    return "; ".join(f"{reason} ({n})" for reason, n in counts.items())
