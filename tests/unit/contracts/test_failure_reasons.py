"""Tests of the counts of reasons: few entries, however the texts of a server differ."""

from __future__ import annotations

from ratchet.contracts.failure_reasons import MOST_REASONS, OTHER_REASONS, counted, told


def test_reasons_that_differ_in_numbers_count_as_one_and_codes_do_not() -> None:
    found = counted([*(f"HTTP 400: you requested {n} tokens" for n in range(14)), "HTTP 500: CUDA out of memory", "HTTP 400"])
    assert found == {"HTTP 400: you requested 0 tokens": 14, "HTTP 500: CUDA out of memory": 1, "HTTP 400": 1}
    assert told(found).startswith("HTTP 400: you requested 0 tokens (14); ")
    assert told({}) == ""


def test_the_rarest_reasons_count_together() -> None:
    found = counted([word * 2 for word in "abcdefghij"] + ["aa"])
    assert len(found) == MOST_REASONS
    assert found["aa"] == 2
    assert found[OTHER_REASONS] == 6
    assert sum(found.values()) == 11
