"""Tests of the sentences about the data of a cycle."""

from __future__ import annotations

import pytest

from ratchet.contracts.data.datasets import HoldoutEdition, MaskedData, NearRule, NearRung, PromptGroup
from ratchet.contracts.ids import digest
from ratchet.contracts.jobs.training import Choice, LeftOut, Method
from ratchet.flows.core.data_notes import (
    count_rows,
    count_words,
    crowding,
    feedback_note,
    left_out,
    masked_answers,
    masking_note,
    near_golden,
    near_note,
    references_note,
    shared_root,
    spare_holdout,
    untaught_slices,
    warned,
)
from tests.builders import make_facts


@pytest.mark.parametrize(
    ("prompts", "of", "warned"), [(50, 200, True), (49, 60, False), (200, 1000, False), (201, 1000, True), (0, 0, False)]
)
def test_a_cluster_is_reported_above_a_fifth_of_the_prompts(prompts: int, of: int, warned: bool) -> None:
    assert (crowding(PromptGroup(prompts=prompts, of=of, side="train")) is not None) == warned


@pytest.mark.parametrize(
    ("side", "consequence"), [("train", "the gate does not measure"), ("held", "no version is trained"), ("neither", "none")]
)
def test_the_warning_says_how_many_what_follows_and_what_to_do(side: str, consequence: str) -> None:
    said = crowding(PromptGroup.model_validate({"prompts": 1840, "of": 2300, "side": side}))
    assert said is not None
    assert "1,840 of 2,300 prompts (80%)" in said
    assert consequence in said
    assert "holdout.similarity" in said
    assert "system message" in said


def test_no_clusters_give_no_warning() -> None:
    assert crowding(None) is None


def test_the_note_names_counts_rules_and_what_is_off() -> None:
    said = masking_note(MaskedData(rules="1-ab", on=("email", "ip"), off=("phone", "person"), found={"email": 1200, "phone": 2}))
    assert "email 1,200, ip 0, phone 2." in said  # a phone number from before the rules were changed
    assert "(version 1-ab) do not mask: phone, person" in said
    assert masking_note(MaskedData(rules="1-ab", on=(), off=("email",), found={})) == "Personal data in the texts is not masked"


def test_rows_that_the_training_leaves_out_are_told_by_reason() -> None:
    counts = (LeftOut(what="pairs", rows=9, reasons={"that the chat template refuses": 2}), LeftOut(what="answers", rows=3, reasons={}))
    choice = Choice(method=Method.DPO, reason="the figures", rules=(), facts=make_facts(), left_out=counts)
    assert left_out(choice) == ["The training job leaves rows out one by one: of 9 pairs, excluded: 2 that the chat template refuses."]
    assert left_out(choice.model_copy(update={"left_out": ()})) == []
    assert warned(choice) == []
    assert warned(choice.model_copy(update={"warnings": ("the template writes the date; fix it",)})) == [
        "Warning: the template writes the date; fix it."
    ]


def test_the_causes_name_why_a_logged_right_answer_is_not_used() -> None:
    counts = {"considered": 9, "reference:holdout": 2, "reference:consent": 1, "reference:used": 4, "reference:newer_one_counts": 1}
    assert references_note(counts) == (
        "Of 8 right answers that the application logged, 4 are used; the others: 2 in the holdout, 1 without consent, "
        "1 to a question with a newer one."
    )
    assert references_note({"reference:used": 4}) == "Of 4 right answers that the application logged, 4 are used."
    assert references_note({"considered": 9}) is None


def test_feedback_and_each_count_are_told_in_words() -> None:
    counts = {"feedback:used": 3, "feedback:golden": 1, "feedback:replaced": 2, "reference:used": 1, "out:rare_prompt": 4, "considered": 9}
    assert feedback_note(counts) == (
        "Of 6 ratings, corrections and reviewers' right answers, 3 are used; the others: 1 on traces on golden prompts, "
        "2 replaced by a later one of the same person."
    )
    assert [count_words(name) for name in [*counts, "out:new_rule", "later"]] == [
        "feedback records that are used",
        "feedback records on traces on golden prompts",
        "feedback records replaced by a later one of the same person",
        "logged right answers that are used",
        "traces on prompts of fewer users than governance.min_users",
        "traces",
        "traces left out by the rule new_rule",
        "later",
    ]
    assert count_rows(counts | {"out:golden": 0})[:2] == [
        ("traces", "9"),
        ("traces on prompts of fewer users than governance.min_users", "4"),
    ]


def test_many_answers_with_masked_values_are_reported_with_the_remedy() -> None:
    counts = {"considered": 300, "out:masked_answer": 46, "reference:masked_answer": 4, "reference:used": 1}
    said = masked_answers(counts)
    assert said
    assert said.startswith("46 of 300 answers contain a masked value that the prompt does not have")
    assert "privacy.allow" in said
    said = masked_answers(counts | {"reference:masked_answer": 6, "reference:used": 2})
    assert said
    assert said.startswith("46 of 300 answers and 6 of 8 right answers contain")
    assert masked_answers({"considered": 300, "out:masked_answer": 30}) is None
    assert masked_answers({}) is None


def test_slices_without_a_row_are_named_the_largest_first_and_only_if_the_gate_judges_them() -> None:
    asked = {"a": 30, "b": 19, "c": 40, "d": 1, **{f"e{n}": 20 for n in range(5)}}
    said = untaught_slices(asked, {"a"}, 20)
    assert said
    assert "no row: c (40 prompts), e0 (20 prompts), e1 (20 prompts), e2 (20 prompts), e3 (20 prompts) and 1 others; together" in said
    assert "140 of its 190 prompts" in said
    assert untaught_slices({"a": 30, "b": 19}, {"a"}, 20) is None
    assert untaught_slices(asked, {"a", ""}, 20) is None, "a row without a slice can be of any"
    assert untaught_slices({}, set(), 20) is None


def test_many_near_duplicates_of_golden_prompts_are_reported_with_the_remedy() -> None:
    said = near_golden({"considered": 798, "out:near_golden": 140})
    assert said
    assert said.startswith("140 of 798 traces (18%) are not trained on")
    assert "holdout.similarity" in said
    assert near_golden({"considered": 798, "out:near_golden": 79}) is None
    assert near_golden({"considered": 30, "out:near_golden": 19}) is None
    assert near_golden({}) is None


@pytest.mark.parametrize(
    ("held", "asked", "golden", "warned"),
    [(491, 13, 400, True), (491, 41, 400, False), (491, 13, 0, False), (300, 13, 400, False), (491, 0, 9, False), (491, 0, 10, True)],
)
def test_a_holdout_that_adds_little_to_the_golden_set_is_reported_with_the_remedy(held: int, asked: int, golden: int, warned: bool) -> None:
    edition = HoldoutEdition(
        line="l", number=1, prompts=digest([]), size=asked, golden=None, golden_size=golden, normaliser=1, fraction=0.2
    )
    said = spare_holdout(edition, {"considered": 3189, "holdout": held})
    assert (said is not None) == warned
    if said and golden == 400:
        assert said.startswith("491 of 3,189 traces (15%) are held out and not trained on, but the gate asks only 13 of their prompts")
        assert "holdout.fraction" in said


def test_what_counts_as_a_near_duplicate_is_told_with_the_pairs_that_show_it() -> None:
    rungs = [(0.8, 0.9, 118, 117), (0.9, 0.95, 30, 30), (0.95, 1.0, 0, 0)]
    measured = tuple(NearRung(least=least, below=below, pairs=pairs, different=different) for least, below, pairs, different in rungs)
    assert near_note(NearRule(similarity=0.95, measured=measured)) == (
        "Prompts with a similarity from 0.95 on count as near-duplicates, as this or an earlier cycle has measured; of pairs with known "
        "right answers, different questions are 117 of 118 with a similarity of 0.8 to 0.9, 30 of 30 with a similarity of 0.9 to 0.95"
    )
    none = tuple(rung.model_copy(update={"pairs": 0, "different": 0}) for rung in measured)
    said = near_note(NearRule(similarity=0.95, measured=none))
    assert said == "Prompts with a similarity from 0.95 on count as near-duplicates, as this or an earlier cycle has measured"
    assert near_note(NearRule(similarity=0.8, measured=none)) is None
    assert near_note(NearRule(similarity=0.9)) is None
    assert near_note(None) is None


def test_a_template_that_is_left_out_is_told() -> None:
    told = "The prompts share a template, which is left out when they are compared"
    assert near_note(NearRule(similarity=0.8, template=900)) == told
    measured = (NearRung(least=0.8, below=0.9, pairs=0, different=0),)
    assert near_note(NearRule(similarity=0.8, measured=measured, template=900)) == told
    said = near_note(NearRule(similarity=0.9, measured=measured, template=900))
    assert said is not None
    assert said.startswith("Prompts with a similarity from 0.9 on count as near-duplicates")
    assert said.endswith(f". {told}")


@pytest.mark.parametrize(("prompts", "of", "warned"), [(20, 199, True), (19, 30, False), (20, 200, False), (0, 0, False)])
def test_prompts_that_begin_with_one_message_are_reported_above_a_tenth(prompts: int, of: int, warned: bool) -> None:
    assert (shared_root(PromptGroup(prompts=prompts, of=of, side="train")) is not None) == warned


def test_the_warning_of_one_message_names_side_and_remedy() -> None:
    said = shared_root(PromptGroup(prompts=328, of=400, side="held"))
    assert said is not None
    assert said.startswith("328 of 400 prompts (82%) begin with the same user message and count as one conversation; all of them are in")
    assert "name it in holdout.skip_greetings" in said
    assert shared_root(None) is None
