"""Which method, or none: a table of explicit rules over measured facts, each row with its figures. Pure.

It knows what SFT, DPO and GRPO can and cannot learn from; it refuses to know how they are run. The rules rest on these facts:
GRPO sharpens what the model sometimes gets right and cannot learn what it never samples right, so `best_of_k` minus the
champion's own reward is the most that it can gain; what it never gets right reaches it through right answers by others
(corrections, references), by SFT or by DPO with an SFT share; a pair whose order is wrong with probability e carries
(1 - 2e)^2 of a clean pair's information. Draws at temperature 1 go wrong on prompts that the model usually answers right, so a
mixed group alone is no sign that anything is to be gained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from contracts.data import UNMEASURED_NOISE, Facts
from contracts.loop import TrainingSettings
from contracts.records import Tier
from contracts.training import Choice, Method, RuleResult
from trainers.recipes import GRPORecipe, complete

MIN_GAIN = 0.02
"""Smaller gains are not worth a training run, and no holdout of usual size could show them."""
OFF_POLICY = 0.5
"""Share of others' answers, and distance of the logged answers from the model's own, above which pairs teach what the model never says."""


@dataclass(frozen=True)
class Case:
    """What the rules look at."""

    facts: Facts
    settings: TrainingSettings
    unseen: bool
    """Some scorer judges answers that nobody has seen yet."""


@dataclass(frozen=True)
class Rule:
    """One row of the table."""

    name: str
    methods: tuple[Method, ...]
    """Those that need it; none: a row that informs."""
    holds: Callable[[Case], bool]
    evidence: Callable[[Case], str]
    """The measured figures, in words."""
    yes: str
    no: str
    change: Callable[[Case], str]
    """What would turn it round."""


def choose(facts: Facts, settings: TrainingSettings, unseen_scorer: bool) -> Choice:
    """The method and the table that it follows from. `unseen_scorer`: some scorer judges answers that nobody has seen yet.

    Monotone: more pairs, more right answers, less label noise, or more group coverage never turn training into not training.
    Never trains on an empty or one-sided set, whatever the settings say. ConfigError where the GRPO recipe is none.
    """
    case = Case(facts, settings, unseen_scorer)
    rows = [(rule, _row(rule, case)) for rule in RULES]
    needs = {method: [row for rule, row in rows if method in rule.methods] for method in (Method.SFT, Method.GRPO, Method.DPO)}
    able = {method for method, needed in needs.items() if all(row.holds for row in needed)}
    table = tuple(row for _, row in rows)
    preferred = [method for name in settings.methods if (method := Method(name)) in able]
    if preferred:
        return Choice(method=preferred[0], reason=_why(preferred, needs[preferred[0]]), rules=table, facts=facts)
    failed = dict.fromkeys(f"{row.effect} ({row.evidence})" for needed in needs.values() for row in needed if not row.holds)
    return Choice(method=Method.NONE, reason="do not train: " + "; ".join(failed), rules=table, facts=facts)


def _row(rule: Rule, case: Case) -> RuleResult:
    holds = rule.holds(case)
    effect = rule.yes if holds else rule.no
    return RuleResult(rule=rule.name, holds=holds, evidence=rule.evidence(case), effect=effect, change=rule.change(case))


def _why(preferred: list[Method], rules: list[RuleResult]) -> str:
    figures = "; ".join(rule.evidence for rule in rules[1:])
    others = " and ".join(method.value.upper() for method in preferred[1:])
    return f"{preferred[0].value.upper()}: {figures}" + (
        f" ({others} would do too; the settings prefer {preferred[0].value.upper()})" if others else ""
    )


def effective_pairs(facts: Facts) -> float:
    """Pairs counted by what they can teach: verifiable ones in full, others by (1 - 2 * label noise)^2."""
    clean = min(facts.pairs, facts.pairs_by_tier.get(Tier.VERIFIABLE, 0))
    noise = UNMEASURED_NOISE if facts.label_noise is None else facts.label_noise
    return clean + (facts.pairs - clean) * max(0.0, 1.0 - 2.0 * noise) ** 2


def usable_prompts(facts: Facts) -> int:
    """Prompts that GRPO's answers can be scored on; where nobody counted them, those with a reference."""
    return facts.prompts_with_reference if facts.usable_prompts is None else facts.usable_prompts


def _prompts_needed(case: Case) -> int:
    return max(case.settings.min_prompts, complete(GRPORecipe, case.settings.grpo).prompts_per_step)


def _gain(facts: Facts) -> float | None:
    return None if facts.best_of_k is None or facts.champion_reward is None else facts.best_of_k - facts.champion_reward


def _from_others(facts: Facts) -> float:
    """Verified pairs whose answers somebody else wrote: what the model can learn without ever having answered so itself."""
    return min(facts.pairs, facts.pairs_by_tier.get(Tier.VERIFIABLE, 0)) * (facts.off_policy or 0.0)


def _to_gain(case: Case) -> bool:
    facts, gain = case.facts, _gain(case.facts)
    short = facts.champion_reward is None or facts.champion_reward < 1.0 - MIN_GAIN
    return facts.corrections > 0 or (short and (gain is None or gain >= MIN_GAIN or _from_others(facts) >= case.settings.min_pairs))


def _gain_evidence(case: Case) -> str:
    facts, gain = case.facts, _gain(case.facts)
    measured = "not measured" if gain is None else f"best of k {facts.best_of_k:.3f} - champion {facts.champion_reward:.3f} = {gain:.3f}"
    return f"{measured}; corrections {facts.corrections}; about {_from_others(facts):.0f} verified pairs of answers that others wrote"


def _pairs_evidence(case: Case) -> str:
    facts = case.facts
    noise = f"label noise {UNMEASURED_NOISE:.0%}, not measured" if facts.label_noise is None else f"label noise {facts.label_noise:.0%}"
    return f"{facts.pairs} pairs, worth {effective_pairs(facts):.0f} clean ones ({noise}); min_pairs {case.settings.min_pairs}"


def _shown(facts: Facts) -> int:
    return sum(facts.demonstrations.values())


def _shown_evidence(case: Case) -> str:
    by = ", ".join(f"{n} by {source}" for source, n in sorted(case.facts.demonstrations.items())) or "none"
    return f"{_shown(case.facts)} answers that count as right ({by}); min_demonstrations {case.settings.min_demonstrations}"


def _coverage_evidence(case: Case) -> str:
    coverage = case.facts.group_coverage
    shown = "not measured (no probe)" if coverage is None else f"{coverage:.0%} of probed prompts have mixed rewards"
    return f"{shown}; min_group_coverage {case.settings.min_group_coverage:.0%}"


def _headroom_evidence(case: Case) -> str:
    gain = _gain(case.facts)
    return "best of k not measured" if gain is None else f"best of k is {gain:.3f} above the champion, the most that GRPO can gain"


def _full(case: Case) -> float:
    """The usual reward above which nothing is missing that could be told from chance."""
    return 1.0 - MIN_GAIN - (case.facts.usual_error or 0.0)


def _room(case: Case) -> bool:
    return case.facts.usual_reward is None or case.facts.usual_reward <= _full(case)


def _room_evidence(case: Case) -> str:
    usual = case.facts.usual_reward
    error = case.facts.usual_error or 0.0
    return "usual reward not measured" if usual is None else f"the champion's usual answers earn {usual:.3f} of 1, give or take {error:.3f}"


def _off_policy(case: Case) -> bool:
    """Whether most of the pairs' answers are somebody else's, or the logged answers are beyond doubt unlike the model's own."""
    facts = case.facts
    least = None if facts.policy_distance is None else facts.policy_distance - 2.0 * (facts.policy_distance_error or 0.0)
    return (facts.off_policy is not None and facts.off_policy > OFF_POLICY) or (least is not None and least > OFF_POLICY)


def _off_policy_evidence(case: Case) -> str:
    share, distance = case.facts.off_policy, case.facts.policy_distance
    pairs = "no pairs" if share is None else f"{share:.0%} of the pairs' answers were not written by this line"
    error = case.facts.policy_distance_error or 0.0
    far = "not measured" if distance is None else f"{max(distance, 0.0):.0%} of the logged ones, give or take {error:.0%}"
    return f"{pairs}; unlike anything that the model says: {far}"


def _margin(have: float, need: float, what: str) -> str:
    """How far a count is from its limit, either way."""
    return f"{need - have:.0f} more {what}" if have < need else f"{have - need:.0f} fewer {what} would still do"


def _allowed(method: Method) -> Rule:
    name = method.value
    return Rule(
        f"{name} is allowed",
        (method,),
        lambda case: name in case.settings.methods,
        lambda case: f"methods: {', '.join(case.settings.methods) or 'none'}",
        f"{name} may be taken",
        f"no {name}",
        lambda case: f"take {name} {'out of' if name in case.settings.methods else 'into'} training.methods",
    )


RULES: tuple[Rule, ...] = (
    _allowed(Method.SFT),
    Rule(
        "answers to imitate",
        (Method.SFT,),
        lambda case: _shown(case.facts) >= case.settings.min_demonstrations,
        _shown_evidence,
        "SFT has enough to imitate",
        "too few right answers for SFT",
        lambda case: _margin(_shown(case.facts), case.settings.min_demonstrations, "right answers"),
    ),
    Rule(
        "answers that teach something new",
        (Method.SFT,),
        lambda case: case.facts.teachable >= case.settings.min_teachable,
        lambda case: (
            f"{case.facts.teachable} of them on prompts that the model mostly gets wrong; min_teachable {case.settings.min_teachable}"
        ),
        "imitating them teaches what the model cannot do yet",
        "SFT would repeat what the model does already",
        lambda case: _margin(case.facts.teachable, case.settings.min_teachable, "right answers where the model fails"),
    ),
    _allowed(Method.DPO),
    Rule(
        "pairs",
        (Method.DPO,),
        lambda case: case.facts.pairs > 0 and effective_pairs(case.facts) >= case.settings.min_pairs,
        _pairs_evidence,
        "DPO has enough to learn from",
        "too few pairs for DPO",
        lambda case: _margin(effective_pairs(case.facts), case.settings.min_pairs, "clean pairs"),
    ),
    Rule(
        "something to gain",
        (Method.DPO,),
        _to_gain,
        _gain_evidence,
        "better answers exist than the champion usually gives",
        "nothing to gain: the champion's best answers are no better than its usual ones, and nobody has shown it better ones",
        lambda case: "no corrections, and no better answers among k" if _to_gain(case) else "one correction, or better answers among k",
    ),
    _allowed(Method.GRPO),
    Rule(
        "a scorer for unseen answers",
        (Method.GRPO,),
        lambda case: case.unseen,
        lambda case: "there is one" if case.unseen else "there is none",
        "GRPO's own answers can be scored",
        "GRPO has no reward: add a verifiable scorer or a judge",
        lambda case: f"{'remove the' if case.unseen else 'add a'} verifiable reward or judge",
    ),
    Rule(
        "prompts",
        (Method.GRPO,),
        lambda case: usable_prompts(case.facts) >= _prompts_needed(case),
        lambda case: (
            f"{case.facts.prompts} prompts, {case.facts.prompts_with_reference} with a reference; "
            f"{usable_prompts(case.facts)} can be scored on; "
            f"min_prompts {_prompts_needed(case)}"
        ),
        "GRPO has prompts enough",
        "too few prompts that GRPO's answers can be scored on",
        lambda case: _margin(usable_prompts(case.facts), _prompts_needed(case), "such prompts"),
    ),
    Rule(
        "group coverage",
        (Method.GRPO,),
        lambda case: bool(case.facts.group_coverage) and (case.facts.group_coverage or 0.0) >= case.settings.min_group_coverage,
        _coverage_evidence,
        "GRPO's groups carry a signal",
        "GRPO cannot learn what is always right or never right",
        lambda case: f"{_margin(100 * (case.facts.group_coverage or 0.0), 100 * case.settings.min_group_coverage, 'points of coverage')}",
    ),
    Rule(
        "headroom",
        (Method.GRPO,),
        lambda case: (_gain(case.facts) or 0.0) >= MIN_GAIN,
        _headroom_evidence,
        "GRPO has something to sharpen",
        "GRPO has nothing to sharpen",
        lambda case: (
            f"a best of k {MIN_GAIN} above the champion" if (_gain(case.facts) or 0.0) < MIN_GAIN else "a champion as good as its best of k"
        ),
    ),
    Rule(
        "room",
        (Method.SFT, Method.DPO, Method.GRPO),
        _room,
        _room_evidence,
        "there is room above what the champion usually answers",
        "the champion is right on nearly every probed prompt: no training could show a gain",
        lambda case: f"usual answers that earn {'more' if _room(case) else 'less'} than {_full(case):.3f}",
    ),
    Rule(
        "corrections",
        (),
        lambda case: case.facts.corrections > 0,
        lambda case: f"{case.facts.corrections} corrections",
        "corrections reach the model through SFT, or DPO with its SFT share; GRPO would use them as references at most",
        "nobody has written a better answer",
        lambda _: "",
    ),
    Rule(
        "off-policy pairs",
        (),
        _off_policy,
        _off_policy_evidence,
        "DPO needs its SFT share: plain DPO on answers unlike the model's own tends to lower both",
        "pairs are mostly the model's own answers, or like them",
        lambda _: "",
    ),
)
"""Read down: a method may be taken where all rows that name it hold; the loop file's order decides between several."""
