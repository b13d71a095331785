"""Tests of the agreement of signals with ratings: noise is not used, an informative signal is, and users are not counted as answers."""

from __future__ import annotations

import random
from collections.abc import Callable

import polars as pl
import pytest

from ratchet.contracts.data.beliefs import SignalBelief
from ratchet.contracts.data.records import SAMPLES, FeedbackKind, Signal
from ratchet.contracts.loop import SignalSettings
from ratchet.materializer.labels.signals.agreement import LEAST_RATED, clustered_share, measure_signals
from ratchet.materializer.labels.signals.labels import SignalLabels
from ratchet.materializer.lake.schemas import frame_of

ALL = SignalSettings(use=tuple(Signal), min_agreement=0.55)
"""Settings that use every signal that passes."""

Has = Callable[[random.Random, bool, float], bool]
"""(random numbers, whether the answer is right, what is special about the user in [0, 1)) -> whether the answer has the signal."""


def _line(
    seed: int, has: Has, signals: tuple[Signal, ...], *, rated: int = 400, users: int = 80, good: float = 0.7, noise: float = 0.1
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return traces, ratings and signals of a simulated line. Users differ in how often they get right answers."""
    draw = random.Random(seed)
    taste = [draw.random() for _ in range(users)]
    traces, ratings, given = [], [], []
    for n in range(rated):
        user = draw.randrange(users)
        right = draw.random() < (good + (0.5 - taste[user]) * 0.4)
        traces.append({"source": "app", "id": str(n), "user": f"u{user}", "session": None})
        value = float(right != (draw.random() < noise))
        ratings.append({"source": "app", "id": str(n), "kind": FeedbackKind.RATING.value, "value": value})
        given += [{"source": "app", "id": str(n), "signal": name.value} for name in signals if has(draw, right, taste[user])]
    kinds = {"source": pl.String, "id": pl.String, "user": pl.String, "session": pl.String}
    return pl.DataFrame(traces, kinds), pl.DataFrame(ratings), pl.DataFrame(given, {**dict.fromkeys(("source", "id", "signal"), pl.String)})


def _beliefs(seed: int, has: Has, signals: tuple[Signal, ...], settings: SignalSettings = ALL, **line: float) -> list[SignalBelief]:
    return measure_signals(*_line(seed, has, signals, **line), settings)  # type: ignore[arg-type]


def _noise(draw: random.Random, right: bool, taste: float) -> bool:
    return draw.random() < 0.3


def _noise_of_some_users(draw: random.Random, right: bool, taste: float) -> bool:
    """A habit of some users, which says nothing about an answer. Their answers are as good as those of others."""
    return int(taste * 1000) % 3 == 0 and draw.random() < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("has", [_noise, _noise_of_some_users])
@pytest.mark.parametrize(
    ("good", "users"), [(0.7, 25), *(pytest.param(*one, marks=pytest.mark.soak) for one in ((0.5, 80), (0.9, 80), (0.95, 400)))]
)
def test_signals_that_say_nothing_are_not_used(has: Has, good: float, users: int) -> None:
    lines = 200
    used = sum(any(belief.used for belief in _beliefs(seed, has, tuple(Signal), good=good, users=users)) for seed in range(lines))
    assert used <= 0.05 * lines


@pytest.mark.slow
@pytest.mark.parametrize("signal", [Signal.COPIED, Signal.REGENERATED])
def test_a_signal_that_says_much_is_found(signal: Signal) -> None:
    def informative(draw: random.Random, right: bool, taste: float) -> bool:
        return draw.random() < (0.5 if right is signal.says_right else 0.02)

    settings = SignalSettings(use=(signal,))
    found = [_beliefs(seed, informative, (signal,), settings, good=0.6, noise=0.05)[0] for seed in range(100)]
    assert sum(belief.used for belief in found) >= 95
    for belief in found:
        assert belief.agreement is not None
        assert belief.low <= belief.agreement <= belief.high
        assert belief.agreeing <= belief.rated <= belief.answers


def test_the_interval_covers_the_true_share_although_users_differ() -> None:
    draw, covered, lines = random.Random(1), 0, 300
    for _ in range(lines):
        cases = [(f"u{user}", draw.random() < share) for user in range(40) for share in [draw.betavariate(3.5, 1.5)] for _ in range(8)]
        found = clustered_share(cases)
        assert found is not None
        covered += found.low <= 0.7 <= found.high
    assert covered >= 0.98 * lines


def test_many_answers_of_one_user_do_not_make_a_share_certain() -> None:
    alone, many = clustered_share([("u", True)] * 1000), clustered_share([(f"u{n}", True) for n in range(1000)])
    assert alone == (1.0, 0.0, 1.0)
    assert many is not None
    assert many.low > 0.99
    assert clustered_share([]) is None


def test_a_signal_has_no_weight_before_its_agreement_is_known() -> None:
    def always_right(draw: random.Random, right: bool, taste: float) -> bool:
        return right

    few = _beliefs(1, always_right, (Signal.COPIED,), rated=LEAST_RATED - 1, noise=0)[0]
    assert not few.used
    assert "rated answers have it" in few.reason
    lonely = _beliefs(1, always_right, (Signal.COPIED,), users=3, noise=0)[0]
    assert not lonely.used
    assert "users" in lonely.reason
    unnamed = _beliefs(1, always_right, (Signal.COPIED,), SignalSettings(), noise=0)[0]
    assert not unnamed.used
    assert "signals.use" in unnamed.reason
    assert _beliefs(1, always_right, (Signal.COPIED,), noise=0)[0].used


def test_most_ratings_are_good_and_a_useless_signal_agrees_with_most_of_them() -> None:
    belief = _beliefs(3, _noise, (Signal.COPIED,), SignalSettings(use=tuple(Signal)), good=0.95, rated=2000, noise=0)[0]
    assert belief.low > 0.85
    assert not belief.used
    assert "no more often than without it" in belief.reason


def _sample(trace: str, tier: str | None = None, reward: float | None = None, votes: int = 0) -> dict[str, object]:
    row: dict[str, object] = dict.fromkeys(column.name for column in SAMPLES)
    row |= {"prompt_id": "p", "prompt": "[]", "answer": trace, "reward": reward, "tier": tier, "parts": "{}", "votes": votes, "repeats": 1}
    return row | {"trace": f"app/{trace}", "origin": "traffic"}


def _belief(signal: Signal, low: float, used: bool = True) -> SignalBelief:
    return SignalBelief(signal=signal, answers=50, rated=40, people=40, agreeing=38, agreement=0.95, low=low, used=used, reason="r")


def test_signals_label_only_what_nothing_else_scores() -> None:
    samples = frame_of(
        [
            _sample("rated", "feedback", 0.0, 1),
            _sample("judged", "judge", 0.2),
            _sample("unscored", votes=1),
            _sample("up"),
            _sample("down"),
            _sample("both"),
            _sample("none"),
            _sample("unused"),
        ],
        SAMPLES,
    )
    given = [
        ("rated", "copied"),
        ("judged", "copied"),
        ("unscored", "copied"),
        ("up", "copied"),
        ("up", "thanked"),
        ("down", "regenerated"),
    ]
    given += [("both", "copied"), ("both", "regenerated"), ("unused", "edited")]
    signals = pl.DataFrame([("app", *one) for one in given], ["source", "id", "signal"], orient="row")
    beliefs = [
        _belief(Signal.COPIED, 0.8),
        _belief(Signal.THANKED, 0.75),
        _belief(Signal.REGENERATED, 0.9),
        _belief(Signal.EDITED, 0.9, False),
    ]
    labels = SignalLabels(beliefs)
    labelled = pl.concat([labels.label(samples[:3], signals), labels.label(samples[3:], signals)])
    found = {row["answer"]: (row["tier"], row["reward"]) for row in labelled.to_dicts()}
    assert found["up"] == ("signal", 0.8)
    assert found["down"] == ("signal", pytest.approx(0.1))
    untouched = labelled.filter(~pl.col("answer").is_in(["up", "down"]))
    assert untouched.equals(samples.filter(~pl.col("answer").is_in(["up", "down"])))
    assert {belief.signal.value: belief.labels for belief in labels.beliefs} == {"copied": 1, "thanked": 0, "regenerated": 1, "edited": 0}
