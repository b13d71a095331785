"""Renders the evidence for an approval request as Markdown tables. Pure functions; does not depend on Prefect.

The evidence is the data produced by flows/engine/evidence.py. It is read from the artifact whose digest is in the ledger, so the
approver sees exactly the evidence that the approval refers to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from textwrap import shorten
from typing import Any

from ratchet.contracts.cycle import ApprovalKind
from ratchet.contracts.evaluation import EvalReport
from ratchet.contracts.jobs.training import Search
from ratchet.flows.core.searches.highest_cost import HighestCost
from ratchet.flows.core.searches.search_results import FORM_COLUMNS, SPACE_COLUMNS, order_text, space
from ratchet.flows.report.story import sampling, stopping

_MARKS = {"pass": "pass", "fail": "FAIL", "inconclusive": "INCONCLUSIVE"}
"""Text instead of symbols, because a font may not contain the symbols."""
_WARNINGS, _WARNING = 2, 200
"""How many warnings the form shows, and how many characters of each."""


def form_text(request: str, evidence: Mapping[str, Any], expires: datetime, links: str) -> str:
    """Return the Markdown text above the fields of the approval form. It is short, so that the fields are visible without scrolling.

    `request` is the request's id, `evidence` the data of flows/engine/evidence.py, `expires` the end of the approval period (UTC), and
    `links` names the places of all evidence, as Markdown.
    """
    question, summary, when = _head(request, evidence, expires)
    everything = f"All evidence: the run's artifact `approve {evidence['kind']}` · {links}"
    return "\n\n".join([question, summary, *_warned(evidence), when, everything]) + "\n"


def evidence_page(request: str, evidence: Mapping[str, Any], expires: datetime) -> str:
    """Return the Markdown page for the run's artifact. The arguments are those of `form_text`."""
    body = _training(evidence) if evidence["kind"] == ApprovalKind.TRAINING else _rollout(evidence)
    foot = (
        "The first answer counts, whether you give it in the run's form or with `ratchet approve`. The ledger records it with the name "
        "you enter."
    )
    return "\n\n".join([*_head(request, evidence, expires), *body, foot]) + "\n"


def _head(request: str, evidence: Mapping[str, Any], expires: datetime) -> tuple[str, str, str]:
    """Return the question, a summary of the evidence, and what the request is and how long it is open."""
    summary = _training_summary(evidence) if evidence["kind"] == ApprovalKind.TRAINING else _rollout_summary(evidence)
    return (
        f"### {_question(evidence)}",
        summary,
        f"Request `{request}`, open until {expires:%Y-%m-%d %H:%M} UTC. "
        f"Reason for opening the cycle: {_cell(evidence['opened'])}. Subject: `{str(evidence['subject'])[:12]}`.",
    )


def _question(evidence: Mapping[str, Any]) -> str:
    line, champion = evidence["line"], evidence["champion"]
    if evidence["kind"] == ApprovalKind.TRAINING:
        method, facts = str(evidence["choice"]["method"]), evidence["choice"]["facts"]
        rows = {
            "dpo": f"{facts['pairs']:,} pairs",
            "sft": f"{sum(facts['demonstrations'].values()):,} answers",
            "grpo": f"{facts['usable_prompts'] or facts['prompts']:,} prompts",
        }
        return f"Train **{line}** with {method.upper()} on {rows.get(method) or rows['grpo']}?"
    return f"Roll out **{evidence['candidate']}** to the users of **{line}**, replacing {champion}?"


def _training_summary(evidence: Mapping[str, Any]) -> str:
    """Return two sentences: what the training costs, and why it is expected to help."""
    estimates = [rule["evidence"].partition(";")[0] for rule in evidence["choice"]["rules"] if "time and budget" in rule["rule"]]
    cost = estimates[0][:1].upper() + estimates[0][1:] if estimates else "There is no estimate of time and cost for these machines"
    return f"**{_cell(cost)}.** {_cell(evidence['choice']['reason'][:1].upper() + evidence['choice']['reason'][1:])}."


def _rollout_summary(evidence: Mapping[str, Any]) -> str:
    """Return the measured effect, the result of the gate, the slices, and how far the rollout goes."""
    report, verdict = evidence["report"], evidence["verdict"]
    overall = next((one for one in report["comparisons"] if one["name"] == "overall"), None)
    effect = "There is no overall comparison"
    if overall is not None:
        difference = overall["difference"]
        word = "better" if difference["estimate"] >= 0 else "worse"
        effect = f"{difference['estimate']:+.3f} {word} ({difference['low']:+.3f} to {difference['high']:+.3f})"
    weights = " → ".join(f"{weight:g}" for weight in evidence["rollout"]["steps"])
    open_checks = [f"{check['check']} {_mark(check['result'])}" for check in verdict["checks"] if check["result"] != "pass"]
    gate = f"Gate: {_mark(verdict['result'])}" + (f" ({_cell(', '.join(open_checks))})" if open_checks else "")
    given = f"**{_given(evidence['given'])}.** " if evidence.get("given") else ""
    slices = _slices(report["comparisons"], evidence["min_slice"])
    return f"{given}**{effect}.** {gate}. {slices}; the users get it in steps of {weights} %."


def _warned(evidence: Mapping[str, Any]) -> list[str]:
    """Return the first sentence of each of the first warnings of the choice, and how many more there are."""
    if evidence["kind"] != ApprovalKind.TRAINING or not (warnings := evidence["choice"].get("warnings", ())):
        return []
    shown = [_cell(shorten(one.partition(". ")[0], _WARNING, placeholder=" …")) for one in warnings[:_WARNINGS]]
    more = f" {len(warnings) - len(shown)} more in the artifact." if len(warnings) > len(shown) else ""
    return [f"**Warning:** {'. **Warning:** '.join(shown)}.{more}"]


def _given(given: Mapping[str, Any]) -> str:
    """Return that the model was trained elsewhere, and what else than its weights it changes."""
    changes = f"; it changes the {' and the '.join(given['differs'])}" if given["differs"] else ""
    return f"Trained elsewhere ({_cell(given['folder'])}){changes}"


def _slices(comparisons: Sequence[Mapping[str, Any]], least: int) -> str:
    """Return which slices are worse, and how many cannot be judged because they have fewer than `least` prompts."""
    slices = [one for one in comparisons if one["name"].startswith("slice:")]
    judged = [one for one in slices if one["n"] >= least]
    worse = [_short(one["name"]) for one in judged if one["difference"]["high"] < 0]
    if slices and not judged:
        return f"**None of the {len(slices)} slices can be judged: each has fewer than {least} prompts**"
    shown = f"Shown worse: {', '.join(worse)}" if worse else "No slice is shown worse" if slices else "There are no slices"
    blind = len(slices) - len(judged)
    return f"{shown}; **{blind} of {len(slices)} slices cannot be judged: fewer than {least} prompts**" if blind else shown


def _mark(result: str) -> str:
    return _MARKS.get(result, result)


def _training(evidence: Mapping[str, Any]) -> list[str]:
    choice = evidence["choice"]
    rules = [
        (f"{'yes' if rule['holds'] else 'NO'}: {rule['rule']}", f"{rule['evidence']}, so {rule['effect']}") for rule in choice["rules"]
    ]
    facts = [[name.replace("_", " "), _figure(value)] for name, value in choice["facts"].items() if value not in (None, {}, [])]
    probe = evidence["probe"]
    sections = [f"**Warning:** {_cell(one)}." for one in choice.get("warnings", ())]
    sections += ["**Rules of the choice**", _points(rules)] if rules else []
    sections += ["**Measured facts**", fitting(["fact", "value"], facts)]
    if probe:
        rows = [[name.replace("_", " "), _figure(value)] for name, value in probe.items() if isinstance(value, int | float)]
        sections += ["**Probe of the start model**", fitting(["metric", "value"], rows)]
    sections += _space(evidence)
    recipe = [[name, _figure(value)] for name, value in sorted(evidence["recipe"].items())]
    counts = [[name, _figure(value)] for name, value in evidence["snapshot"].items()]
    return [
        *sections,
        "**Snapshot**",
        fitting(["traces", "count"], counts),
        "**Recipe**",
        fitting(["setting", "value"], recipe),
    ]


def _space(evidence: Mapping[str, Any]) -> list[str]:
    """Return the recipes that the cycle may try, and what that costs at most."""
    if not evidence["search"]:
        return []
    search = Search.model_validate(evidence["search"])
    return [
        f"**Search over {len(search.variants)} recipes**, in this order. {_cell(order_text(search))} All others together take at most "
        f"{search.budget:,.0f} s of job time; those that are not tried by then are left out. The development prompts decide which model is "
        "evaluated: that of the first recipe, unless another one is clearly better.",
        fitting(SPACE_COLUMNS, space(search)),
        f"**{HighestCost.model_validate(evidence['highest']).text}**",
    ]


def _searched(search: Mapping[str, Any] | None) -> list[str]:
    """Return the results of the search, if there was one."""
    if not search:
        return []
    chosen = f"{search['chosen']} {search['reason']}"
    failed = [(row[0], row[-1]) for row in search["rows"] if row[-1].startswith("failed")]
    return [
        f"**Search over recipes** on the development prompts. Chosen: {_cell(chosen)}.",
        *map(_cell, search["told"]),
        fitting(search["columns"][:FORM_COLUMNS], [row[:FORM_COLUMNS] for row in search["rows"]]),
        *([_points(failed)] if failed else []),
        *([_fixed(search["picture"][:-1]), search["picture"][-1]] if search["picture"] else []),
    ]


def _rollout(evidence: Mapping[str, Any]) -> list[str]:
    report, verdict, plan = evidence["report"], evidence["verdict"], evidence["rollout"]
    rows = [_comparison(comparison) for comparison in report["comparisons"]]
    checks = [(f"{_mark(check['result'])}: {check['check']}", check["reason"]) for check in verdict["checks"]]
    failures = _cell(", ".join(f"{name} {count}" for name, count in report["failures"].items()) or "none")
    errors = {comparison["name"]: (1 - comparison["difference"]["level"]) / 2 for comparison in report["comparisons"]}
    others = next((error for name, error in errors.items() if name != "overall"), 0.0)
    errors_shown = f"error per side: overall {errors.get('overall', 0.0):.2g}, others {others:.2g}"
    rewards = _cell("; ".join(f"{_short(one['name'])} {one['champion']:.3f} → {one['candidate']:.3f}" for one in report["comparisons"]))
    return [
        f"**Gate: {_mark(verdict['result'])}**",
        _points(checks),
        f"**Candidate against champion** on holdout edition {report['edition']}: {report['answered_by_both']} of {report['asked']} "
        f"prompts were answered by both; prompts with failed requests: {failures}.",
        *sampling(report["samples"], report["temperature"]),
        *(stopping(EvalReport.model_validate(report)) if report["looks"] else ()),
        fitting(["comparison", "prompts", "difference"], rows),
        f"The intervals have this {errors_shown}. Mean rewards, champion → candidate: {rewards}.",
        *_searched(evidence["search"]),
        "**Rollout plan**",
        fitting(["setting", "value"], _plan(plan)),
    ]


def _comparison(comparison: Mapping[str, Any]) -> list[str]:
    """Return one row: the name, the number of prompts, and the difference with its interval."""
    difference = comparison["difference"]
    interval = f"{difference['estimate']:+.3f} ({difference['low']:+.3f} to {difference['high']:+.3f})"
    return [_short(comparison["name"]), str(comparison["n"]), interval]


def _short(name: str) -> str:
    return name.removeprefix("slice:")


def _plan(plan: Mapping[str, Any]) -> list[list[str]]:
    """Return the rules of the rollout."""
    mirrored = f"up to {plan['mirror']} prompts of users are asked again at both versions" if plan["mirror"] else "none"
    return [
        ["weights", " → ".join(f"{weight:g} %" for weight in plan["steps"])],
        ["champion's share at the end", f"{plan['holdback']:g} %"],
        ["each step takes", f"at least {plan['min_requests']} requests and {plan['min_seconds']:g} s; at most "
         f"{plan['max_seconds']:g} s"],
        ["reach 100 % if", "the tests exclude a loss of each margin, and enough people have rated both versions"],
        ["roll back if", f"a test shows lower ratings (margin {plan['margin']:g}), more errors or refused requests (margin "
         f"{plan['error_margin']:.0%}), more slow answers (margin {plan['slow_margin']:.0%}); median and p95 latency both exceed "
         f"{plan['latency_ratio']:g} × the champion's; requests of a "
         f"version leave no trace for {plan['dark']:g} s; or a step takes longer than its limit"],
        ["mirrored prompts", mirrored],
        ["probability of a false rollback", f"{plan['alpha']:.0%}"],
        ["probability of promoting a candidate that is worse by a margin", f"{plan['beta']:.0%}"],
    ]  # fmt: skip


def _points(pairs: Sequence[tuple[str, str]]) -> str:
    """Return a Markdown list. Its lines wrap in the narrow form, where the cells of a table would be cut off."""
    return "\n".join(f"- **{_cell(head)}**: {_cell(text)}" for head, text in pairs)


_WIDTH, _PADDING = 62, 4
"""Characters that fit into a row of the form beside each other, and those that the padding of a cell takes. Cells do not wrap."""


def fitting(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table, or a list if the table would be wider than the form, which would cut off its last columns."""
    widths = [max(len(str(cell)) for cell in column) + _PADDING for column in zip(columns, *rows, strict=True)]
    if sum(widths) <= _WIDTH:
        return table(columns, rows)
    if len(columns) == 2:
        return _points([(str(name), str(value)) for name, value in rows])
    names = columns[1:]
    return _points([(str(row[0]), "; ".join(f"{name} {value}" for name, value in zip(names, row[1:], strict=True))) for row in rows])


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table. Characters with a meaning in Markdown or HTML are escaped in every cell."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _fixed(lines: Sequence[str]) -> str:
    """Return lines of text in a Markdown block with a fixed-width font. No line can end the block."""
    return "\n".join(["```text", *(" ".join(line.splitlines()).replace("`", "'") for line in lines), "```"])


def _cell(value: object) -> str:
    text = " ".join(str(value).split())
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return text


def _figure(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_figure(part)}" for key, part in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(_figure(part) for part in value)
    return str(value)
