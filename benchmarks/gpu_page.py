"""The page of a report by `gpu.py`: what ran, how fast it was beside the plain script, what did not run or broke, and why.

`python benchmarks/gpu_page.py report.json` writes `report.html` beside it. `gpu.py` does so after each section.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

import click

ABOUT = {
    "dpo": "DPO with all weights: the plain script of the library, and Ratchet's trainer on the same pairs",
    "resume": "DPO stopped after two of four steps and resumed: the largest difference of a weight",
    "out_of_memory": "A step without memory, and the change that the health watch proposes",
    "sft": "SFT with the library's trainer, as a job uses it",
    "grpo": "GRPO with the library's trainer, which generates itself",
    "vllm": "GRPO with vLLM on the training GPU, beside generation without it",
    "fsdp2": "SFT sharded over all GPUs",
    "jobs": "Jobs of the product by method: their peak memory beside the arithmetic of the plan",
    "nemo_rl": "One step of GRPO on NeMo RL as a job",
}
"""Section -> what it measures."""
STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem;color:#1c1c1c;background:#fff}
table{border-collapse:collapse;margin:.5rem 0 1.5rem;width:100%}td,th{border-bottom:1px solid #ddd;padding:.3rem .6rem;text-align:left;
vertical-align:top}td.n{text-align:right;font-variant-numeric:tabular-nums}.ran{color:#17662f}.broke{color:#a31515;font-weight:600}
.out{color:#666}.bar{background:#3b6ea5;height:.9rem;display:inline-block;vertical-align:middle}pre{background:#f5f5f5;padding:.6rem;
overflow-x:auto;font-size:12px}@media(prefers-color-scheme:dark){body{background:#161616;color:#e6e6e6}td,th{border-color:#333}
pre{background:#222}}"""


def state(section: Mapping[str, Any]) -> tuple[str, str]:
    """Return the state of a section (ran, not run or broke), and why it did not run."""
    if "error" in section:
        return "broke", str(section["error"])
    return ("not run", str(section["skipped"])) if "skipped" in section else ("ran", "")


def page(report: Mapping[str, Any]) -> str:
    """Return the report as an HTML page without scripts and without anything from elsewhere."""
    sections: Mapping[str, Mapping[str, Any]] = report["sections"]
    ran = sum(state(one)[0] == "ran" for one in sections.values())
    broke = [name for name, one in sections.items() if state(one)[0] == "broke"]
    head = f"{ran} of {len(sections)} sections ran on {report['device']}" + (f"; {', '.join(broke)} broke" if broke else "")
    took = f", {report['seconds']:g} s" if "seconds" in report else ""
    facts = f"{report['date']}, code {report['code']}{took}, model {_size(report['size'])}"
    rehearsal = "<p><b>A rehearsal on a CPU: its figures say nothing about GPUs.</b></p>" if report.get("toy") else ""
    overview = _overview(sections, report.get("seconds_of", {}))
    body = "\n".join([f"<h1>{escape(head)}</h1><p>{escape(facts)}</p>{rehearsal}", overview, *_details(sections)])
    top = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(head)}</title><style>{STYLE}</style>'
    return f"{top}<body>{body}</body></html>\n"


def _size(size: Mapping[str, Any]) -> str:
    return f"of {size['layers']} layers of {size['hidden']} units, {size['vocabulary']:,} words"


def _overview(sections: Mapping[str, Mapping[str, Any]], seconds: Mapping[str, float]) -> str:
    rows = []
    for name, section in sections.items():
        what, why = state(section)
        kind = {"ran": "ran", "broke": "broke"}.get(what, "out")
        told = escape(why) or _figure(section)
        took = f"{seconds[name]:g}" if name in seconds else ""
        cells = f'<td class="{kind}">{what}</td><td>{escape(ABOUT.get(name, ""))}</td><td>{told}</td><td class="n">{took}</td>'
        rows.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    names = ("section", "state", "what it measures", "result, or why not", "seconds")
    return f"<table><tr>{''.join(f'<th>{one}</th>' for one in names)}</tr>{''.join(rows)}</table>"


def _figure(section: Mapping[str, Any]) -> str:
    """Return the main figure of a section that ran."""
    if "plain script" in section:
        return f"{section['ours']['over_plain_cold']:g} times the tokens a second of the plain script"
    if "cases" in section:
        ran = [one["expected_over_peak"] for one in section["cases"].values() if "expected_over_peak" in one]
        return f"the arithmetic gives {min(ran):g} to {max(ran):g} times the peak memory" if ran else ""
    for name, unit in (
        ("vllm_over_plain", "times as fast as without vLLM"),
        ("answer_tokens_per_s", "answer tokens a second"),
        ("tokens_per_s", "tokens a second"),
        ("largest_difference", "largest difference of a weight"),
        ("loss_afterwards", "loss after the change"),
        ("step_seconds", "seconds a step"),
    ):
        if name in section:
            return f"{section[name]:g} {unit}"
    return ""


def _details(sections: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, section in sections.items():
        what, _ = state(section)
        if what == "not run":
            continue
        yield f"<h2>{escape(name)}</h2>"
        if what == "broke":
            yield f"<pre>{escape(str(section.get('trace', '')))}</pre>"
        elif "plain script" in section:
            yield _compared(section)
        elif "cases" in section:
            yield _cases(section["cases"])
        else:
            yield _table({key: value for key, value in section.items() if not isinstance(value, Mapping)})
            for inner, value in section.items():
                if isinstance(value, Mapping):
                    yield f"<h3>{escape(inner)}</h3>{_table(value)}"


def _compared(section: Mapping[str, Any]) -> str:
    """Return the trainers of one section beside each other, with a bar for the tokens a second."""
    most = max(one["tokens_per_s_cold"] for one in section.values())
    rows = []
    for name, one in section.items():
        bar = f"<span class='bar' style='width:{14 * one['tokens_per_s_cold'] / most:.2f}rem'></span>"
        figures = (
            f"{one['tokens_per_s_cold']:,}", f"{one['tokens_per_s_warm']:,}", one["peak_gib"], one["over_plain_cold"],
            f"{one['loss_differs_at_most']:.1e}",
        )  # fmt: skip
        rows.append(f"<tr><td>{escape(name)}</td><td>{bar}</td>{''.join(f'<td class=n>{one}</td>' for one in figures)}</tr>")
    names = ("trainer", "", "tokens/s with reference", "tokens/s", "peak GiB", "over plain", "loss differs")
    return f"<table><tr>{''.join(f'<th>{one}</th>' for one in names)}</tr>{''.join(rows)}</table>"


def _cases(cases: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the jobs below each other, with the measured peak memory beside the expected one."""
    rows = []
    for name, one in cases.items():
        figures = [_shown(one.get(key, "–")) for key in ("step_seconds", "start_seconds", "export_seconds", "job_seconds")]
        figures += [_shown(one.get(key, "–")) for key in ("peak_gib", "expected_gib", "expected_over_peak")]
        why = f"<br>{escape(str(one.get('error', one.get('skipped', ''))))}" if {"error", "skipped"} & set(one) else ""
        rows.append(f"<tr><td>{escape(name)}{why}</td>{''.join(f'<td class=n>{escape(one)}</td>' for one in figures)}</tr>")
    names = ("job", "seconds of the steps", "start, s", "export, s", "whole job, s", "peak GiB", "expected GiB", "expected over peak")
    return f"<table><tr>{''.join(f'<th>{one}</th>' for one in names)}</tr>{''.join(rows)}</table>"


def _table(figures: Mapping[str, Any]) -> str:
    rows = [f"<tr><td>{escape(key)}</td><td class='n'>{escape(_shown(value))}</td></tr>" for key, value in figures.items()]
    return f"<table>{''.join(rows)}</table>"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_shown(one) for one in value)
    return f"{value:,.6g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


@click.command()
@click.argument("report", type=click.Path(exists=True, path_type=Path))
def main(report: Path) -> None:
    """Write the page of REPORT beside it."""
    report.with_suffix(".html").write_text(page(json.loads(report.read_text())), encoding="utf-8")


if __name__ == "__main__":
    main()
