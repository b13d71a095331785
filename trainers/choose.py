"""Choice of the training method, or of no training, by a table of explicit rules over measured facts.

Each row of the table states the figures that it was judged by. The module is pure and does not depend on how a method is run.
The rules are based on these observations:

* GRPO reinforces correct answers that the model sometimes samples. It cannot learn an answer that the model never samples.
  So its gain is at most `best_of_k` minus the champion's own reward.
* The model learns other answers only from correct answers by other authors (corrections, references). SFT, or DPO with an SFT
  share, trains on these. So SFT comes before GRPO where the model never gives a right answer to more prompts than GRPO can learn from.
* A pair whose order is wrong with probability e carries (1 - 2e)^2 of the information of a clean pair.
* Samples at temperature 1 are sometimes wrong even if the most frequent answer is correct. So a group with mixed rewards does not
  prove that training can gain anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ratchet.contracts.data.datasets import UNMEASURED_NOISE, Facts
from ratchet.contracts.data.records import Tier
from ratchet.contracts.jobs.training import Choice, Method, RuleResult
from ratchet.contracts.loop import TrainingSettings
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.grpo import GRPORecipe

MIN_GAIN = 0.02
"""Smallest gain in mean reward that justifies a run. A holdout of the usual size cannot show a smaller one."""
OFF_POLICY = 0.5
"""Limit above which pairs count as off-policy, that is, as answers that the model itself does not give.

Applies to the share of answers by other authors and to the distance of the logged answers from the model's own."""


@dataclass(frozen=True)
class Case:
    """Input of the rules: the facts and the settings."""

    facts: Facts
    settings: TrainingSettings
    unseen: bool
    """Whether a scorer can score new answers, which no user has rated."""


@dataclass(frozen=True)
class ChoiceRule:
    """One row of the rule table."""

    name: str
    methods: tuple[Method, ...]
    """Methods that require this rule. Empty for a row that only informs."""
    holds: Callable[[Case], bool]
    """Whether the rule is satisfied."""
    evidence: Callable[[Case], str]
    """The measured figures as text."""
    yes: str
    """Effect on the choice if the rule holds."""
    no: str
    """Effect on the choice if it does not hold."""
    change: Callable[[Case], str]
    """The change of the facts or settings that would reverse the result."""


def choose(facts: Facts, settings: TrainingSettings, unseen_scorer: bool) -> Choice:
    """Return the chosen method, the reason, and the table of rules.

    `unseen_scorer` states whether a scorer can score new answers, which no user has rated.
    If the settings prefer GRPO to SFT, both are possible, and more of the probed prompts are never answered right than have mixed rewards,
    SFT is chosen.
    The choice is monotone: more pairs, more correct answers, less label noise or more group coverage never change a decision to
    train into a decision not to train. An empty or one-sided set is never trained on, with any settings.
    Raises ConfigError if the GRPO recipe in the settings is not valid.
    """
    case = Case(facts, settings, unseen_scorer)
    rows = [(rule, _row(rule, case)) for rule in RULES]
    needs = {method: [row for rule, row in rows if method in rule.methods] for method in (Method.SFT, Method.GRPO, Method.DPO)}
    able = {method for method, needed in needs.items() if all(row.holds for row in needed)}
    table = tuple(row for _, row in rows)
    preferred = [method for name in settings.methods if (method := Method(name)) in able]
    if preferred:
        moved = preferred[0] is Method.GRPO and Method.SFT in preferred and _out_of_reach(case)
        ordered = sorted(preferred, key=lambda method: method is not Method.SFT) if moved else preferred
        because = _never_right_evidence(case) if moved else f"the settings prefer {ordered[0].value.upper()}"
        return Choice(method=ordered[0], reason=_why(ordered, needs[ordered[0]], because), rules=table, facts=facts)
    failed = dict.fromkeys(f"{row.effect} ({row.evidence})" for needed in needs.values() for row in needed if not row.holds)
    return Choice(method=Method.NONE, reason="do not train: " + "; ".join(failed), rules=table, facts=facts)


def _row(rule: ChoiceRule, case: Case) -> RuleResult:
    holds = rule.holds(case)
    effect = rule.yes if holds else rule.no
    return RuleResult(rule=rule.name, holds=holds, evidence=rule.evidence(case), effect=effect, change=rule.change(case))


def _why(preferred: list[Method], rules: list[RuleResult], because: str) -> str:
    figures = "; ".join(rule.evidence for rule in rules[1:])
    others = " and ".join(method.value.upper() for method in preferred[1:])
    return f"{preferred[0].value.upper()}: {figures}" + (f" ({others} would also be possible; {because})" if others else "")


def effective_pairs(facts: Facts) -> float:
    """Return the number of clean pairs with the same information.

    Pairs with a verifiable score count 1, other pairs (1 - 2 * label noise)^2.
    """
    clean = min(facts.pairs, facts.pairs_by_tier.get(Tier.VERIFIABLE, 0))
    noise = UNMEASURED_NOISE if facts.label_noise is None else facts.label_noise
    return clean + (facts.pairs - clean) * max(0.0, 1.0 - 2.0 * noise) ** 2


def usable_prompts(facts: Facts) -> int:
    """Return the number of prompts whose answers GRPO can score; if it was not counted, the number of prompts with a reference."""
    return facts.prompts_with_reference if facts.usable_prompts is None else facts.usable_prompts


def _prompts_needed(case: Case) -> int:
    return max(case.settings.min_prompts, complete(GRPORecipe, case.settings.grpo).prompts_per_step)


def _gain(facts: Facts) -> float | None:
    return None if facts.best_of_k is None or facts.champion_reward is None else facts.best_of_k - facts.champion_reward


def _from_others(facts: Facts) -> float:
    """Estimated number of verified pairs with answers by other authors. The model can learn these without having sampled them."""
    return min(facts.pairs, facts.pairs_by_tier.get(Tier.VERIFIABLE, 0)) * (facts.off_policy or 0.0)


def _to_gain(case: Case) -> bool:
    facts, gain = case.facts, _gain(case.facts)
    short = facts.champion_reward is None or facts.champion_reward < 1.0 - MIN_GAIN
    return facts.corrections > 0 or (short and (gain is None or gain >= MIN_GAIN or _from_others(facts) >= case.settings.min_pairs))


def _gain_evidence(case: Case) -> str:
    facts, gain = case.facts, _gain(case.facts)
    measured = "not measured" if gain is None else f"best of k {facts.best_of_k:.3f} - mean {facts.champion_reward:.3f} = {gain:.3f}"
    return f"{measured}; corrections {facts.corrections}; about {_from_others(facts):.0f} verified pairs with answers by other authors"


def _pairs_evidence(case: Case) -> str:
    facts = case.facts
    noise = f"label noise {UNMEASURED_NOISE:.0%}, not measured" if facts.label_noise is None else f"label noise {facts.label_noise:.0%}"
    return f"{facts.pairs} pairs, equivalent to {effective_pairs(facts):.0f} clean pairs ({noise}); min_pairs {case.settings.min_pairs}"


def _shown(facts: Facts) -> int:
    return sum(facts.demonstrations.values())


def _shown_evidence(case: Case) -> str:
    by = ", ".join(f"{n} by {source}" for source, n in sorted(case.facts.demonstrations.items())) or "none"
    less = f", of which {case.facts.repeats} weigh less, as equal answers to near-duplicate prompts" if case.facts.repeats else ""
    return f"{_shown(case.facts)} correct answers ({by}){less}; min_demonstrations {case.settings.min_demonstrations}"


def _coverage_evidence(case: Case) -> str:
    coverage = case.facts.group_coverage
    shown = "not measured (no probe)" if coverage is None else f"{coverage:.0%} of probed prompts have mixed rewards"
    return f"{shown}; min_group_coverage {case.settings.min_group_coverage:.0%}"


def _headroom_evidence(case: Case) -> str:
    gain = _gain(case.facts)
    return "best of k not measured" if gain is None else f"best of k is {gain:.3f} above the mean; GRPO cannot gain more than this"


def _out_of_reach(case: Case) -> bool:
    """Whether more probed prompts are never answered right than have mixed rewards, from which alone GRPO learns."""
    never = case.facts.never_right
    return never is not None and never > (case.facts.group_coverage or 0.0)


def _never_right_evidence(case: Case) -> str:
    never, mixed = case.facts.never_right, case.facts.group_coverage or 0.0
    if never is None:
        return "not measured (no probe)"
    return f"{never:.0%} of the probed prompts were never answered right although a reference is known, {mixed:.0%} have mixed rewards"


def _full(case: Case) -> float:
    """The usual reward above which the difference to 1 is too small to be distinguished from chance."""
    return 1.0 - MIN_GAIN - (case.facts.usual_error or 0.0)


def _room(case: Case) -> bool:
    return case.facts.usual_reward is None or case.facts.usual_reward <= _full(case)


def _room_evidence(case: Case) -> str:
    usual = case.facts.usual_reward
    error = case.facts.usual_error or 0.0
    if usual is None:
        return "usual reward not measured"
    new = case.facts.new_prompts
    on = "" if new is None else f", on {new} prompts that it was not trained on"
    return f"the champion's usual reward is {usual:.3f} of 1 (standard error {error:.3f}{on})"


def _off_policy(case: Case) -> bool:
    """Whether most answers in the pairs are by other authors, or the logged answers differ significantly from the model's own."""
    facts = case.facts
    least = None if facts.policy_distance is None else facts.policy_distance - 2.0 * (facts.policy_distance_error or 0.0)
    return (facts.off_policy is not None and facts.off_policy > OFF_POLICY) or (least is not None and least > OFF_POLICY)


def _off_policy_evidence(case: Case) -> str:
    share, distance = case.facts.off_policy, case.facts.policy_distance
    pairs = "no pairs" if share is None else f"{share:.0%} of the pairs' answers were not written by this line"
    error = case.facts.policy_distance_error or 0.0
    far = "not measured" if distance is None else f"{max(distance, 0.0):.0%} of the logged answers (standard error {error:.0%})"
    return f"{pairs}; answers that the model would not give: {far}"


def _margin(have: float, need: float, what: str) -> str:
    """The distance of a count from its limit, as text, in either direction."""
    return f"{need - have:.0f} more {what}" if have < need else f"{have - need:.0f} fewer {what} would still be enough"


def _allowed(method: Method) -> ChoiceRule:
    name = method.value
    return ChoiceRule(
        f"{name} is allowed",
        (method,),
        lambda case: name in case.settings.methods,
        lambda case: f"methods: {', '.join(case.settings.methods) or 'none'}",
        f"{name} is permitted",
        f"{name} is not permitted",
        lambda case: f"{'remove from' if name in case.settings.methods else 'add to'} training.methods: {name}",
    )


RULES: tuple[ChoiceRule, ...] = (
    _allowed(Method.SFT),
    ChoiceRule(
        "answers to imitate",
        (Method.SFT,),
        lambda case: _shown(case.facts) >= case.settings.min_demonstrations,
        _shown_evidence,
        "SFT has enough correct answers",
        "too few correct answers for SFT",
        lambda case: _margin(_shown(case.facts), case.settings.min_demonstrations, "correct answers"),
    ),
    ChoiceRule(
        "answers that teach something new",
        (Method.SFT,),
        lambda case: case.facts.teachable >= case.settings.min_teachable,
        lambda case: (
            f"{case.facts.teachable} of them on prompts that the model mostly answers wrong; min_teachable {case.settings.min_teachable}"
        ),
        "SFT would teach answers that the model does not give yet",
        "SFT would mostly repeat answers that the model already gives",
        lambda case: _margin(case.facts.teachable, case.settings.min_teachable, "correct answers where the model fails"),
    ),
    _allowed(Method.DPO),
    ChoiceRule(
        "pairs",
        (Method.DPO,),
        lambda case: case.facts.pairs > 0 and effective_pairs(case.facts) >= case.settings.min_pairs,
        _pairs_evidence,
        "DPO has enough pairs",
        "too few pairs for DPO",
        lambda case: _margin(effective_pairs(case.facts), case.settings.min_pairs, "clean pairs"),
    ),
    ChoiceRule(
        "something to gain",
        (Method.DPO,),
        _to_gain,
        _gain_evidence,
        "some answers are better than the usual ones",
        "nothing to gain: the best answers are no better than the usual ones, and there are no better answers by other authors",
        lambda case: "no correction and no better answer among k" if _to_gain(case) else "a correction, or a better answer among k",
    ),
    _allowed(Method.GRPO),
    ChoiceRule(
        "a scorer for unseen answers",
        (Method.GRPO,),
        lambda case: case.unseen,
        lambda case: "available" if case.unseen else "not available",
        "GRPO's own answers can be scored",
        "GRPO has no reward in its jobs: add a verifiable scorer, or set in_jobs for a judge that is believed",
        lambda case: f"{'remove the' if case.unseen else 'add a'} reward of new answers that runs in jobs",
    ),
    ChoiceRule(
        "prompts",
        (Method.GRPO,),
        lambda case: usable_prompts(case.facts) >= _prompts_needed(case),
        lambda case: (
            f"{case.facts.prompts} prompts, {case.facts.prompts_with_reference} with a reference; "
            f"{usable_prompts(case.facts)} with answers that can be scored; "
            f"min_prompts {_prompts_needed(case)}"
        ),
        "GRPO has enough prompts",
        "too few prompts for which GRPO's answers can be scored: record references, or set in_jobs for a judge that is believed",
        lambda case: _margin(usable_prompts(case.facts), _prompts_needed(case), "such prompts"),
    ),
    ChoiceRule(
        "group coverage",
        (Method.GRPO,),
        lambda case: bool(case.facts.group_coverage) and (case.facts.group_coverage or 0.0) >= case.settings.min_group_coverage,
        _coverage_evidence,
        "enough of GRPO's groups have mixed rewards to learn from",
        "GRPO cannot learn from groups whose answers are all correct or all wrong",
        lambda case: f"{_margin(100 * (case.facts.group_coverage or 0.0), 100 * case.settings.min_group_coverage, 'points of coverage')}",
    ),
    ChoiceRule(
        "headroom",
        (Method.GRPO,),
        lambda case: (_gain(case.facts) or 0.0) >= MIN_GAIN,
        _headroom_evidence,
        "GRPO has headroom",
        "GRPO has too little headroom",
        lambda case: (
            f"a best of k {MIN_GAIN} above the champion" if (_gain(case.facts) or 0.0) < MIN_GAIN else "a champion as good as its best of k"
        ),
    ),
    ChoiceRule(
        "room",
        (Method.SFT, Method.DPO, Method.GRPO),
        _room,
        _room_evidence,
        "the champion's usual answers can be improved",
        "the champion is correct on nearly every probed prompt: no training could show a gain",
        lambda case: f"a usual reward {'above' if _room(case) else 'below'} {_full(case):.3f}",
    ),
    ChoiceRule(
        "corrections",
        (),
        lambda case: case.facts.corrections > 0,
        lambda case: f"{case.facts.corrections} corrections",
        "SFT, or DPO with an SFT share, can learn the corrections; GRPO can use them only as references",
        "no user has written a correction",
        lambda _: "",
    ),
    ChoiceRule(
        "prompts that are never answered right",
        (),
        _out_of_reach,
        _never_right_evidence,
        "more is out of GRPO's reach, which only reinforces answers that the model samples, than within it: SFT goes first if it can",
        "GRPO can learn from more prompts than are out of its reach",
        lambda case: f"a share of never right answers {'up to' if _out_of_reach(case) else 'above'} {case.facts.group_coverage or 0.0:.0%}",
    ),
    ChoiceRule(
        "off-policy pairs",
        (),
        _off_policy,
        _off_policy_evidence,
        "DPO needs its SFT share: on answers unlike the model's own, plain DPO tends to lower the probability of both answers",
        "most answers in the pairs are the model's own, or similar to them",
        lambda _: "",
    ),
)
"""The rule table, in order. A method is possible if all rows that name it hold. If several are, the order in the loop file decides."""
