"""The model card of a version: its training data, method, cost and measurements. From the ledger alone; pure.

The card has no text of a user. The registry shows it as the description of the version, and `ratchet model card` prints it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ratchet.contracts.cycle import ApprovalKind
from ratchet.contracts.evaluation import EvalReport, Interval, Result
from ratchet.contracts.serving import ModelVersion
from ratchet.contracts.steps import FreezeResult, PlanResult
from ratchet.flows.core.data_notes import count_rows, masking_note
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.folds.line import LineView

UNKNOWN = "unknown"
_LICENCE_FILES = re.compile(r"(licen[cs]e|copying)(\.(txt|md))?", re.IGNORECASE)
_NAME_LENGTH = 100
"""Maximum length of the name of a licence. A longer text is not a name."""


def model_card(version: ModelVersion, cycle: CycleView | None, line: LineView, licence: str) -> str:
    """Return the card of a version as Markdown.

    `cycle` is the cycle that made it; None for the adopted model. `licence` is that of the adopted model, as `base_licence` returns it.
    """
    page = f"# {version.line}, version {version.number} ({version.tag})\n"
    for title, body in _sections(version, cycle, line, licence):
        page += f"\n## {title}\n\n" + "\n".join(body) + "\n"
    return page


def base_licence(files: Mapping[str, str], read: Callable[[str], bytes]) -> str:
    """Return the licence that a model folder states, or `unknown`.

    `files` maps the names of its files to digests, and `read` returns the content of a digest. The front matter of README.md counts first,
    then the field `license` of config.json, then the first line of a file with the name LICENSE, LICENCE or COPYING.
    """
    stated: list[str] = []
    if "README.md" in files:
        head = re.match(r"---\s*\n(.*?)\n---", _text(read(files["README.md"])), re.DOTALL)
        found = re.search(r"^licen[cs]e:[ \t]*(\S.*)$", head[1], re.MULTILINE) if head else None
        stated.append(found[1].strip().strip("\"'") if found else "")
    if "config.json" in files:
        stated.append(_configured(read(files["config.json"])))
    for name in sorted(files):
        if _LICENCE_FILES.fullmatch(name):
            stated.append(next((line.strip() for line in _text(read(files[name])).splitlines() if line.strip()), ""))
    return next((one for one in stated if 0 < len(one) <= _NAME_LENGTH), UNKNOWN)


def _text(content: bytes) -> str:
    return content[:65_536].decode(errors="replace")


def _configured(content: bytes) -> str:
    try:
        found = json.loads(content)
    except ValueError:
        return ""
    value = found.get("license") if isinstance(found, dict) else None
    return value.strip() if isinstance(value, str) else ""


def _sections(version: ModelVersion, cycle: CycleView | None, line: LineView, licence: str) -> Iterator[tuple[str, Sequence[str]]]:
    yield "Model", _model(version, cycle, line, licence)
    if cycle is None:
        yield "Origin", ("An operator adopted this model. Ratchet has not trained it, and knows nothing of its training data.",)
    else:
        yield "Data", _data(cycle)
        yield "Training", _training(cycle)
        yield "Evaluation", _evaluation(cycle)
        yield "Approvals", _approvals(cycle)
    yield "Limits", _limits(version, cycle, line)


def _model(version: ModelVersion, cycle: CycleView | None, line: LineView, licence: str) -> list[str]:
    kind = "an adapter" if version.model.parent else "a whole model"
    found = [
        f"- Model: {version.model.id} ({kind})",
        f"- Base: {line.base.tag if line.base else UNKNOWN}, licence {licence}",
        f"- State: {_state(version, line)}",
    ]
    if line.source:
        found.append(f"- Downloaded from: {line.source.repository} at commit {line.source.commit} ({line.source.revision})")
    if cycle is not None:
        found.append(f"- Cycle: {cycle.id}, {str(cycle.state).replace('_', ' ')}" + (f": {cycle.reason}" if cycle.reason else ""))
        found.append(f"- Trained from: {'elsewhere' if cycle.given else cycle.start.tag}")
    return found


def _state(version: ModelVersion, line: LineView) -> str:
    states = [name for name, one in (("champion", line.champion), ("previous", line.previous)) if one and one.tag == version.tag]
    states += ["recalled"] if version.tag in line.recalled else []
    return ", ".join(states) or "does not serve"


def _data(cycle: CycleView) -> list[str]:
    frozen, planned, rules = cycle.get(FreezeResult), cycle.get(PlanResult), cycle.loop.governance
    found = [
        f"- Consent {rules.consent}; regions: {', '.join(rules.regions) or 'all'}; "
        f"confidentiality: {', '.join(rules.confidentiality) or 'all'}; prompts of at least {rules.min_users} users"
    ]
    if frozen is None:
        return [*found, "- No data were frozen."]
    snapshot, edition = frozen.snapshot, frozen.edition
    found += [
        f"- Snapshot {snapshot.content[:12]}, with all records up to {snapshot.as_of:%Y-%m-%d %H:%M} UTC",
        f"- {masking_note(snapshot.masked)}",
        f"- Held-out prompts: {edition.size} (edition {edition.number}); golden set: {edition.golden_size or 'none'}",
    ]
    if planned is not None:
        facts = planned.dataset.facts
        found.append(f"- Training set {planned.dataset.content[:12]}: {facts.pairs} pairs, {facts.prompts} prompts")
    return [*found, "", *_table(("what", "records"), count_rows(snapshot.counts))]


def _training(cycle: CycleView) -> list[str]:
    if cycle.given is not None:
        return [f"- Trained elsewhere, and given by {cycle.opened.actor}: model {cycle.given.model.id[:12]}"]
    plan = cycle.trained_plan
    if plan is None:
        return ["- Nothing was trained."]
    used = [one for one in {i.attempt: i.usage for i in cycle.incarnations}.values() if one is not None]
    seconds = sum((i.ended - i.began).total_seconds() for i in cycle.incarnations if i.began is not None and i.ended is not None)
    cost = sum(one.cost for one in used)
    spent = f"{sum(one.used for one in used) / 3600:.2f} GPU-hours, {sum(one.nodes for one in used) / 3600:.2f} node-hours" if used else ""
    found = [
        f"- Method {plan.method}, seed {plan.seed}, code {plan.code[:12]}, plan {plan.id[:12]}",
        f"- Starts of the job: {len(cycle.incarnations)}, {seconds:.0f} s in all" + (f"; {spent}" if spent else ""),
        f"- Cost by the price table: {f'{cost:.2f}' if cost else UNKNOWN}",
    ]
    return [*found, "", *_table(("setting", "value"), sorted(_flat(plan.recipe).items()))]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": str(value)}
    return found


def _evaluation(cycle: CycleView) -> list[str]:
    report = cycle.report
    if report is None:
        return ["- Not evaluated."]
    found = [
        f"- Compared with {cycle.baseline.tag} on {report.asked} prompts, of which {report.answered_by_both} have a scored answer of both",
        f"- Sampling: {'greedy' if report.temperature == 0 else f'{report.samples} answers at temperature {report.temperature:g}'}",
    ]
    if cycle.verdict is not None:
        found.append(f"- Verdict of the gate: {cycle.verdict.result}")
    rows = [(c.name, str(c.n), f"{c.champion:.3f}", f"{c.candidate:.3f}", _interval(c.difference)) for c in _compared(report)]
    return [*found, "", *_table(("prompts", "n", "compared version", "this version", "difference"), rows)]


def _compared(report: EvalReport) -> list[Any]:
    """Return the comparisons of rewards, of answers that were cut, and of harmful and harmless prompts."""
    return [*report.comparisons, *([report.cut] if report.cut else []), *(report.safety.comparisons if report.safety else ())]


def _interval(value: Interval) -> str:
    return f"{value.estimate:+.3f} ({value.low:+.3f} to {value.high:+.3f}, level {value.level:g})"


def _approvals(cycle: CycleView) -> list[str]:
    found = []
    for kind in ApprovalKind:
        if (answer := cycle.answers.get(kind)) is not None:
            note = f": {answer.note}" if answer.note else ""
            found.append(f"- {kind}: {'approved' if answer.approve else 'refused'} by {answer.actor} ({answer.via}){note}")
        elif kind in cycle.asked:
            found.append(f"- {kind}: asked, not answered")
    return found or ["- None was asked for."]


def _limits(version: ModelVersion, cycle: CycleView | None, line: LineView) -> list[str]:
    found = []
    if (reason := line.recalled.get(version.tag)) is not None:
        found.append(f"- Recalled: {reason}")
    if cycle is None:
        return [*found, "- What is not measured here is unknown: the model was adopted without an evaluation."]
    for check in cycle.verdict.checks if cycle.verdict else ():
        if check.result is not Result.PASS:
            found.append(f"- Check {check.check}, {check.result}: {check.reason}")
    report = cycle.report
    if report is not None and report.safety is None:
        found.append("- Harmful and harmless prompts were not compared.")
    if report is not None and not any(one.name.startswith("slice:") for one in report.comparisons):
        found.append("- No slice of the traffic had enough prompts for a comparison of its own.")
    return [*found, "- The evaluation covers prompts as in the traffic of the line. Other uses were not evaluated."]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows] if rows else []
    return [f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines]


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
