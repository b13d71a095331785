"""Counts the placeholders in the texts of a snapshot, and names the rules by which they were made."""

from __future__ import annotations

from typing import get_args

import polars as pl

from ratchet.contracts.data.datasets import MaskedData
from ratchet.contracts.ids import digest
from ratchet.contracts.loop import NameSettings, PersonalData, PrivacySettings
from ratchet.materializer.privacy.masking import kinds_of

RULES = 2
"""Version of the code of the rules: of what the detectors find, and of how it is replaced."""
_PLACEHOLDER = r"\[([A-Z][A-Z_]{1,30})_\d{1,6}\]"


def masked_data(samples: pl.DataFrame, settings: PrivacySettings) -> MaskedData:
    """Return what was masked in the distinct prompts and answers of `samples` (records.SAMPLES), and the rules that are in force."""
    on = kinds_of(settings)
    known = [*get_args(PersonalData), *(name.lower() for name in NameSettings.model_fields["entities"].default)]
    texts = pl.concat([samples["prompt"].unique(), samples.select("prompt_id", "answer").unique()["answer"]])
    names = texts.str.extract_all(_PLACEHOLDER).explode().drop_nulls().str.extract(_PLACEHOLDER).str.to_lowercase().to_list()
    kinds = {*on, *known}
    found = {kind: n for kind in sorted(kinds) if (n := names.count(kind))}
    rules = f"{RULES}-{digest(settings.model_dump(mode='json'))[:8]}"
    return MaskedData(rules=rules, on=tuple(on), off=tuple(kind for kind in known if kind not in on), found=found)
