"""What the figures of a training run say about its length and its data, as sentences."""

from __future__ import annotations

from collections.abc import Mapping

_GAIN = ("development_gain", "development_gain_error")
_FOLDS = {f"cross_validated_{name}" for name in ("steps", "folds", "prompts", "gain", "gain_error")} | {"published_step"}


def teachers_text(metrics: Mapping[str, float]) -> list[str]:
    """Say how many answers of teachers the run has left out, if it has compared them."""
    if not {"teacher_answers", "teacher_answers_left_out"} <= metrics.keys():
        return []
    answers, left_out = metrics["teacher_answers"], metrics["teacher_answers_left_out"]
    return [
        f"Of {answers:.0f} answers of teachers, {left_out:.0f} were left out: a model that was trained without teachers finds them less "
        "likely than nearly all known right answers."
    ]


def length_text(metrics: Mapping[str, float]) -> list[str]:
    """Say which of the measured models was published, if the run found its own number of steps."""
    if metrics.keys() >= _FOLDS:
        return [
            f"The run has {metrics['published_step']:.0f} steps: {metrics['cross_validated_steps']:.0f} steps, chosen by "
            f"cross-validation over {metrics['cross_validated_prompts']:.0f} prompts "
            f"({metrics['cross_validated_gain']:+.2f} ± {metrics['cross_validated_gain_error']:.2f} against the start model), "
            "and a cooldown. The models that answered these prompts were not trained on them. The published model was."
        ]
    if not {"published_step", "development_prompts", "development_score", "development_start", *_GAIN} <= metrics.keys():
        return []  # a job writes them, so some may be missing
    return [
        f"The run measured its model on {metrics['development_prompts']:.0f} development prompts, which the line never trains on, and "
        f"published the one after step {metrics['published_step']:.0f}: score {metrics['development_score']:.3f}, start model "
        f"{metrics['development_start']:.3f}, difference {metrics['development_gain']:+.3f} with a standard error of "
        f"{metrics['development_gain_error']:.3f}."
    ]
