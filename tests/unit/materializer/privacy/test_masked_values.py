"""Tests of texts with placeholders that their prompts do not have."""

from __future__ import annotations

import polars as pl
import pytest

from ratchet.contracts.loop import PrivacySettings
from ratchet.materializer.privacy.masked_values import has_unknown, placeholder_pattern

PATTERN = placeholder_pattern(PrivacySettings(patterns={"customer": "K"}))


@pytest.mark.parametrize(
    ("text", "prompt", "unknown", "apart"),
    [
        (None, "[EMAIL_1]", False, False),
        ("plain", None, False, False),
        ("to [EMAIL_1]", None, True, True),
        ("to [EMAIL_1]", "from [EMAIL_1]", False, False),
        ("to [EMAIL_2]", "from [EMAIL_1]", True, True),
        ("to [EMAIL_1]", "[EMAIL_1] and [EMAIL_2]", False, True),
        ("to [EMAIL_1]", "[EMAIL_1] and [PHONE_1]", False, False),
        ("[EMAIL_1] [PHONE_1]", "[EMAIL_1]", True, True),
        ("[CUSTOMER_1]", "none", True, True),
        ("[PERSON_3]", "none", True, True),
        ("[DOC_1] [email_1] [EMAIL]", "none", False, False),
    ],
)
def test_a_placeholder_counts_if_the_prompt_has_it(text: str | None, prompt: str | None, unknown: bool, apart: bool) -> None:
    texts = pl.Series([text, "other"], dtype=pl.String)
    questions = pl.DataFrame({"messages": [prompt, prompt], "tools": [None, None]}, schema={"messages": pl.String, "tools": pl.String})
    assert has_unknown(texts, questions, PATTERN).to_list() == [unknown, False]
    assert has_unknown(texts, questions, PATTERN, apart=True).to_list() == [apart, False]


def test_a_placeholder_in_the_definition_of_a_tool_counts() -> None:
    texts, questions = pl.Series(["none", "[IP_1]", "[IP_1]"]), pl.DataFrame({"prompt": "q", "tools": [None, "uses [IP_1]", None]})
    assert has_unknown(texts, questions, PATTERN, messages="prompt").to_list() == [False, False, True]
