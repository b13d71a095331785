"""Tests of the rules for which traces may be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.materializer.conftest import governed_by_rules, make_datasets, make_loop
from tests.unit.materializer.records import batch, span, spans


@pytest.mark.parametrize(("least", "used", "rare"), [(1, {"common", "twice", "mine", "nobody"}, 0), (2, {"common"}, 6)])
def test_prompts_of_too_few_users_are_left_out_and_counted(tmp_path: Path, least: int, used: set[str], rare: int) -> None:
    datasets = make_datasets(tmp_path, make_loop(governance={"min_users": least}))
    items = [span(1, "common"), span(2, "common"), span(3, "mine")]
    items += [span(n, "twice", user__id="same") for n in (4, 5)] + [span(n, "nobody", user__id=None) for n in (6, 7, 8)]
    datasets.ingest(batch(spans(*items)))
    rows = datasets.lake.scan("traces")
    governed = governed_by_rules(datasets, rows)
    assert {text for text in ("common", "twice", "mine", "nobody") if governed.used["messages"].str.contains(text).any()} == used
    assert governed.out.get("rare_prompt", 0) == rare
    assert len(governed.used) + sum(governed.out.values()) == len(rows)


@pytest.mark.slow
def test_prompts_that_differ_in_masked_values_only_count_together(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(governance={"min_users": 2}))
    datasets.ingest(batch(spans(span(1, "write to a.b@example-mail.com"), span(2, "write to c.d@example-mail.com"))))
    governed = governed_by_rules(datasets, datasets.lake.scan("traces"))
    assert "rare_prompt" not in governed.out


@pytest.mark.parametrize("rule", ["regions", "confidentiality"])
def test_traces_without_an_allowed_label_are_left_out_and_counted(tmp_path: Path, rule: str) -> None:
    datasets = make_datasets(tmp_path, make_loop(governance={rule: ["one", "two"]}))
    attribute = {"regions": "metadata__region"}.get(rule, f"metadata__{rule}")
    items = [span(n, f"prompt {n}", **{attribute: label}) for n, label in enumerate(("one", "two", "secret", None), 1)]
    datasets.ingest(batch(spans(*items)))
    governed = governed_by_rules(datasets, datasets.lake.scan("traces"))
    assert len(governed.used) == 2
    assert governed.out == {rule.removesuffix("s"): 2}
