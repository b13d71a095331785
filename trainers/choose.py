"""Which method, or none: a table of explicit rules over measured facts, each row with its figures. Pure.

It knows what DPO and GRPO can and cannot learn from; it refuses to know how they are run. The rules rest on these facts:
GRPO sharpens what the model sometimes gets right and cannot learn what it never samples right, so `best_of_k` minus the
champion's own reward is the most that it can gain; corrections reach the model only through DPO and its SFT share; a
pair whose order is wrong with probability e carries (1 - 2e)^2 of a clean pair's information.
"""

from __future__ import annotations

from contracts.data import Facts
from contracts.loop import TrainingSettings
from contracts.records import Tier
from contracts.training import Choice, Method, RuleResult

MIN_GAIN = 0.02
"""Smaller gains are not worth a training run, and no holdout of usual size could show them."""


def choose(facts: Facts, settings: TrainingSettings, unseen_scorer: bool) -> Choice:
    """The method and the table that it follows from. `unseen_scorer`: some scorer judges answers that nobody has seen yet.

    Monotone: more pairs, less label noise, or more group coverage never turn training into not training. Never trains
    on an empty or one-sided set, whatever the settings say.
    """
    gain = _something_to_gain(facts, settings)
    dpo = [_allowed(settings, Method.DPO), _pairs(facts, settings), gain]
    grpo = [
        _allowed(settings, Method.GRPO),
        _scorer(unseen_scorer),
        _prompts(facts),
        _coverage(facts, settings),
        _headroom(facts),
    ]
    able = {method for method, rules in ((Method.DPO, dpo), (Method.GRPO, grpo)) if all(rule.holds for rule in rules)}
    rules = (*dpo, *grpo, _corrections(facts), _off_policy(facts))
    preferred = [method for name in settings.methods if (method := Method(name)) in able]
    if preferred:
        reason = _why(preferred[0], able, {Method.DPO: dpo, Method.GRPO: grpo}[preferred[0]])
        return Choice(method=preferred[0], reason=reason, rules=rules, facts=facts)
    failed = [rule for rule in [*dpo, *grpo] if not rule.holds]
    return Choice(method=Method.NONE, reason="do not train: " + "; ".join(_unique(failed)), rules=rules, facts=facts)


def _unique(rules: list[RuleResult]) -> list[str]:
    return list(dict.fromkeys(f"{rule.effect} ({rule.evidence})" for rule in rules))


def _why(method: Method, able: set[Method], rules: list[RuleResult]) -> str:
    figures = "; ".join(rule.evidence for rule in rules[1:])
    order = " (GRPO would do too; the settings prefer DPO)" if method == Method.DPO and len(able) == 2 else ""
    order = " (DPO would do too; the settings prefer GRPO)" if method == Method.GRPO and len(able) == 2 else order
    return f"{method.value.upper()}: {figures}{order}"


def _rule(name: str, holds: bool, evidence: str, otherwise: str, effect: str) -> RuleResult:
    return RuleResult(rule=name, holds=holds, evidence=evidence, effect=effect if holds else otherwise)


def _allowed(settings: TrainingSettings, method: Method) -> RuleResult:
    listed = ", ".join(settings.methods) or "none"
    return _rule(
        f"{method.value} is allowed", method in settings.methods, f"methods: {listed}", f"no {method.value}", f"{method.value} may be taken"
    )


def effective_pairs(facts: Facts) -> float:
    """Pairs counted by what they can teach: verifiable ones in full, others by (1 - 2 * label noise)^2; noise not measured: in full."""
    clean = min(facts.pairs, facts.pairs_by_tier.get(Tier.VERIFIABLE, 0))
    noise = facts.label_noise or 0.0
    return clean + (facts.pairs - clean) * max(0.0, 1.0 - 2.0 * noise) ** 2


def _pairs(facts: Facts, settings: TrainingSettings) -> RuleResult:
    worth = effective_pairs(facts)
    noise = "label noise not measured" if facts.label_noise is None else f"label noise {facts.label_noise:.0%}"
    return _rule(
        "pairs",
        facts.pairs > 0 and worth >= settings.min_pairs,
        f"{facts.pairs} pairs, worth {worth:.0f} clean ones ({noise}); min_pairs {settings.min_pairs}",
        "too few pairs for DPO",
        "DPO has enough to learn from",
    )


def _gain(facts: Facts) -> float | None:
    return None if facts.best_of_k is None or facts.champion_reward is None else facts.best_of_k - facts.champion_reward


def _from_others(facts: Facts) -> float:
    """Verified pairs whose answers somebody else wrote: what the model can learn without ever having answered so itself."""
    return min(facts.pairs, facts.pairs_by_tier.get(Tier.VERIFIABLE, 0)) * (facts.off_policy or 0.0)


def _something_to_gain(facts: Facts, settings: TrainingSettings) -> RuleResult:
    gain, others = _gain(facts), _from_others(facts)
    short = facts.champion_reward is None or facts.champion_reward < 1.0 - MIN_GAIN
    measured = "not measured" if gain is None else f"best of k {facts.best_of_k:.3f} - champion {facts.champion_reward:.3f} = {gain:.3f}"
    return _rule(
        "something to gain",
        facts.corrections > 0 or (short and (gain is None or gain >= MIN_GAIN or others >= settings.min_pairs)),
        f"{measured}; corrections {facts.corrections}; about {others:.0f} verified pairs of answers that others wrote",
        "nothing to gain: the champion's best answers are no better than its usual ones, and nobody has shown it better ones",
        "better answers exist than the champion usually gives",
    )


def _scorer(unseen: bool) -> RuleResult:
    return _rule(
        "a scorer for unseen answers",
        unseen,
        "there is one" if unseen else "there is none",
        "GRPO has no reward: add a verifiable scorer or a judge",
        "GRPO's own answers can be scored",
    )


def _prompts(facts: Facts) -> RuleResult:
    evidence = f"{facts.prompts} prompts, {facts.prompts_with_reference} with a reference"
    return _rule("prompts", facts.prompts > 0, evidence, "GRPO has no prompts", "GRPO has prompts")


def _coverage(facts: Facts, settings: TrainingSettings) -> RuleResult:
    coverage = facts.group_coverage
    shown = "not measured (no probe)" if coverage is None else f"{coverage:.0%} of probed prompts have mixed rewards"
    return _rule(
        "group coverage",
        coverage is not None and coverage > 0 and coverage >= settings.min_group_coverage,
        f"{shown}; min_group_coverage {settings.min_group_coverage:.0%}",
        "GRPO cannot learn what is always right or never right",
        "GRPO's groups carry a signal",
    )


def _headroom(facts: Facts) -> RuleResult:
    gain = _gain(facts)
    shown = "best of k not measured" if gain is None else f"best of k is {gain:.3f} above the champion, the most that GRPO can gain"
    return _rule("headroom", gain is not None and gain >= MIN_GAIN, shown, "GRPO has nothing to sharpen", "GRPO has something to sharpen")


def _corrections(facts: Facts) -> RuleResult:
    """A row that informs: no method hangs on it alone."""
    return _rule(
        "corrections",
        facts.corrections > 0,
        f"{facts.corrections} corrections",
        "nothing that only DPO could use",
        "corrections reach the model through DPO and its SFT share only; GRPO would use them as references at most",
    )


def _off_policy(facts: Facts) -> RuleResult:
    """A row that informs."""
    share = facts.off_policy
    return _rule(
        "off-policy pairs",
        share is not None and share > 0.5,
        "not measured" if share is None else f"{share:.0%} of the pairs' answers were not written by the start model",
        "pairs are mostly the model's own answers",
        "DPO needs its SFT share: plain DPO on others' answers tends to lower both",
    )
