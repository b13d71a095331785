"""Counts the placeholders in the texts of a snapshot, and names the rules by which they were made."""

from __future__ import annotations

import re
from collections import Counter

import polars as pl

from ratchet.contracts.data.datasets import MaskedData
from ratchet.contracts.ids import digest
from ratchet.contracts.loop import PrivacySettings
from ratchet.materializer.privacy.masking import PLACEHOLDER, kinds_of, known_kinds
from ratchet.materializer.texts import key_of

RULES = 2
"""Version of the code of the rules: of what the detectors find, and of how it is replaced."""
_NAMED = re.compile(PLACEHOLDER)


class Placeholders:
    """Counts the placeholders in the distinct prompts and answers of a snapshot, part by part."""

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()
        self._prompts: set[bytes] = set()

    def add(self, samples: pl.DataFrame) -> None:
        """Count those of some samples (records.SAMPLES). All samples of one prompt are added at once."""
        answers = samples.select("prompt_id", "answer").unique()["answer"]
        self._names.update(_names(answers.filter(answers.str.contains(PLACEHOLDER))))
        prompts = samples["prompt"].unique()
        for prompt in prompts.filter(prompts.str.contains(PLACEHOLDER)).to_list():
            if (key := key_of(prompt)) not in self._prompts:  # a prompt with other tools is another prompt with the same text
                self._prompts.add(key)
                self._names.update(_names(pl.Series([prompt])))

    def summary(self, settings: PrivacySettings) -> MaskedData:
        """Return the counts of masked texts, and the rules that are in force."""
        on = kinds_of(settings)
        known = known_kinds(settings)
        found = {kind: n for kind in sorted(known) if (n := self._names[kind])}
        rules = f"{RULES}-{digest(settings.model_dump(mode='json'))[:8]}"
        return MaskedData(rules=rules, on=tuple(on), off=tuple(kind for kind in known if kind not in on), found=found)


def _names(texts: pl.Series) -> list[str]:
    """Return the name of each placeholder, in lower case."""
    return [name.lower() for text in texts.to_list() for name, _ in _NAMED.findall(text)]
