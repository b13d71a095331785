"""Tests of the sentences about a training run."""

from __future__ import annotations

from ratchet.flows.report.run_text import length_text, teachers_text


def test_a_number_of_steps_found_by_cross_validation_is_told_with_its_error() -> None:
    folds = {"steps": 26.0, "folds": 4.0, "prompts": 62.0, "gain": 0.11, "gain_error": 0.04}
    metrics = {f"cross_validated_{name}": value for name, value in folds.items()} | {"published_step": 32.0}
    (text,) = length_text(metrics)
    assert "32 steps: 26 steps, chosen by cross-validation over 62 prompts (+0.11 ± 0.04 against the start model)" in text
    assert length_text({name: value for name, value in metrics.items() if name != "cross_validated_gain"}) == []


def test_answers_of_teachers_that_were_left_out_are_counted() -> None:
    (text,) = teachers_text({"teacher_answers": 310.0, "teacher_answers_left_out": 62.0})
    assert "Of 310 answers of teachers, 62 were left out" in text
    assert teachers_text({"teacher_answers": 310.0}) == []
