"""Lays out the screen of `ratchet status --watch` as rows of styled texts that fit into a terminal. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import datetime

from ratchet.flows.cli.output import span
from ratchet.flows.cli.terminal import visible
from ratchet.flows.core.screen import Limit, Screen, Serving, ShownStep

Row = list[tuple[str, str]]
"""Parts of a row: text, and style in the words of rich."""

_MARKS = {"done": "✓", "running": "▶", "waiting": "?", "ended": "✗", "not yet": "·"}
_STYLES = {"done": "green", "running": "bold reverse", "waiting": "bold black on yellow", "ended": "bold red", "not yet": "dim"}
_LABEL = 9
"""Width of the labels at the left."""
_MOST_PROBLEMS = 4
_MOST_VERSIONS = 3


def rows(screen: Screen, width: int, height: int) -> list[Row]:
    """Return at most `height` rows of at most `width` characters. The last ones say what comes next and who must act.

    In a low terminal, blank rows go first, then the details, then the list of the steps.
    """
    for compact in range(4):
        head = [_title(screen, width), *_problems(screen, width, compact), _cycle(screen, width), *_steps(screen, width, compact)]
        blocks = [head, _rollout(screen, width), _traffic(screen, width, compact), _next(screen, width, compact)]
        blank: list[Row] = [[]] if compact == 0 else []
        laid = [row for number, block in enumerate(blocks) if block for row in ([*blank, *block] if number else block)]
        if len(laid) <= height:
            return laid
    last = blocks[-1]
    return [*laid[: max(0, height - len(last))], *last][:height]


def plain(screen: Screen, width: int) -> str:
    """Return all rows as text without styles."""
    return "\n".join("".join(text for text, _ in row).rstrip() for row in rows(screen, width, 1000))


def _fit(text: str, width: int) -> str:
    """Return the text in one line of at most `width` characters."""
    text = visible(text).replace("\n", " ").replace("\t", " ")
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _labelled(label: str, texts: Sequence[tuple[str, str]], width: int) -> list[Row]:
    """Return one row per text, the first one with the label."""
    return [
        [(f"{label if number == 0 else '':<{_LABEL}}", "bold"), (_fit(text, width - _LABEL), style)]
        for number, (text, style) in enumerate(texts)
    ]


def _ago(at: datetime, now: datetime) -> str:
    return f"{span(max(0.0, (now - at).total_seconds()))} ago"


def _clock(at: datetime, now: datetime) -> str:
    """Return a time, with its date if it is of another day, and how far away it is."""
    shown = f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"
    left = (at - now).total_seconds()
    return f"{shown} UTC, in {span(left)}" if left > 0 else f"{shown} UTC, now"


def _title(screen: Screen, width: int) -> Row:
    clock = f"{screen.at:%Y-%m-%d %H:%M:%S} UTC"
    versions = f" · champion {screen.champion or 'none'}" + (f" · previous {screen.previous}" if screen.previous else "")
    left = _fit(screen.line + versions, width - len(clock) - 2)
    return [(left, "bold"), (" " * (width - len(left) - len(clock)), ""), (clock, "dim")]


def _problems(screen: Screen, width: int, compact: int) -> list[Row]:
    shown: list[Row] = []
    for one in screen.problems[:_MOST_PROBLEMS]:
        mark, style = ("✗ ", "bold white on red") if one.level == "error" else ("· ", "yellow")
        wrapped = textwrap.wrap(" ".join(visible(one.text).split()), width - 2) or [""]
        most = 3 if compact == 0 else 2
        wrapped = [*wrapped[: most - 1], _fit(" ".join(wrapped[most - 1 :]), width - 2)] if len(wrapped) >= most else wrapped
        shown += [[(mark if number == 0 else "  ", style), (text, style)] for number, text in enumerate(wrapped)]
    if len(screen.problems) > _MOST_PROBLEMS:
        shown.append([(f"  and {len(screen.problems) - _MOST_PROBLEMS} more: `ratchet status`", "bold")])
    return shown or [[(_fit("✓ the service, its disk, Prefect and the ingest work", width), "green")]]


def _cycle(screen: Screen, width: int) -> Row:
    if screen.cycle is None:
        return [("no cycle yet", "")]
    if screen.open:
        since = f" for {span((screen.at - screen.since).total_seconds())}" if screen.since else ""
        busy = f"; {screen.busy}" if screen.busy else ""
        return [(_fit(f"{screen.cycle} {screen.state}, open{since}{busy}", width), "bold")]
    ended = f" {_ago(screen.since, screen.at)}" if screen.since else ""
    style = "green" if screen.state == "promoted" else "red" if screen.state == "failed" else "yellow"
    return [(_fit(f"{screen.cycle} ended {screen.state}{ended}: {screen.reason}", width), style)]


def _steps(screen: Screen, width: int, compact: int) -> list[Row]:
    if compact == 3:
        number, at = next(
            ((number, one) for number, one in enumerate(screen.steps, 1) if one.state in ("running", "waiting", "ended")),
            (len(screen.steps), screen.steps[-1]),
        )
        return [[(f"step {number} of {len(screen.steps)}: ", ""), *_step(at, width - 20)]]
    columns = 3 if compact == 2 else 2
    height, column = -(-len(screen.steps) // columns), min(38, width // columns)
    return [[part for one in screen.steps[at::height] for part in _step(one, column)] for at in range(height)]


def _step(step: ShownStep, width: int) -> Row:
    text = _fit(f"{_MARKS[step.state]} {step.title}", width - 2)
    return [(text, _STYLES[step.state]), (" " * (width - len(text)), "")]


def _bar(share: float, width: int) -> str:
    full = round(share * width)
    return "█" * full + "░" * (width - full)


def _rollout(screen: Screen, width: int) -> list[Row]:
    rollout, training = screen.rollout, screen.training
    if training is not None:
        text = f"{_bar(training.step / max(1, training.total), 30)} step {training.step:,} of {training.total:,}"
        return _labelled("Training", [(f"{text}, {_ago(training.at, screen.at)}", "")], width)
    if rollout is None:
        return []
    weights = " ".join(f"[{one:g}]" if one == rollout.weight else f"{one:g}" for one in rollout.steps)
    first = f"step {rollout.number} of {len(rollout.steps)}: {weights} %  {_bar(rollout.weight / 100, 10)}"
    elapsed = (screen.at - rollout.since).total_seconds()
    left = (rollout.earliest - screen.at).total_seconds()
    time = f"{span(max(0.0, elapsed))} in this step" + (f", at least {span(left)} left" if left > 0 else "")
    texts = [(f"{first}  {time}" if len(first) + len(time) + 2 <= width - _LABEL else first, "bold")]
    if len(first) + len(time) + 2 > width - _LABEL:
        texts.append((time, ""))
    judged = f"the evidence of {rollout.judged:%H:%M:%S} UTC" if rollout.judged else "no evidence yet"
    header = f"{_fit(judged, 28):<28} {'limit':<9}{'needed':<20}harm"
    evidence = [(_evidence(one), _tone(one)) for one in rollout.evidence]
    return _labelled("Rollout", [*texts, (header, "dim"), *evidence], width)


def _evidence(one: Limit) -> str:
    shown = f"{_bar(one.shown, 10)} {one.shown:.0%}" if one.shown is not None else "–"
    harm = f"{_bar(one.harm, 10)} {one.harm:.0%}" if one.harm is not None else "–"
    return f"{one.name:<13}{one.value:<15} {one.limit:<9}{shown:<20}{harm}"


def _tone(one: Limit) -> str:
    if one.harm is not None and one.harm >= 0.5:
        return "red" if one.harm >= 1 else "yellow"
    return "green" if one.shown == 1 else ""


def _traffic(screen: Screen, width: int, compact: int) -> list[Row]:
    traffic, now = screen.traffic, screen.at
    if traffic is None:
        texts = [("unknown: the router's report cannot be read here", "yellow")]
    else:
        total = sum(one.requests for one in traffic.versions)
        young = traffic.since is not None and (now - traffic.since).total_seconds() < traffic.minutes * 60
        during = f"{span((now - traffic.since).total_seconds())}" if young and traffic.since else ""
        lost = sum(traffic.lost.values())
        told = [f"{total:,} requests in {during or f'{traffic.minutes} min'}", f"{traffic.in_flight} open"]
        told += [f"{traffic.turned_away} refused", f"{lost:,} traces lost" if lost else "no trace lost"]
        told += [f"{traffic.unsent_bytes / 1e6:.1f} MB of traces not sent"] if traffic.unsent_bytes > 1e6 else []
        texts = [(", ".join(told), "red" if lost else "")]
        most = 1 if compact >= 3 else _MOST_VERSIONS
        texts += [(_version(one), "red" if one.errors * 20 > one.requests else "") for one in traffic.versions[:most]]
    ingested = f"newest commit {_ago(screen.ingested, now)}" if screen.ingested else "nothing ingested, or unknown"
    waiting = "nothing waits"
    if screen.waiting is not None:
        oldest = span(max(0.0, (now - screen.waiting.oldest).total_seconds()))
        waiting = f"{screen.waiting.requests:,} requests wait, the oldest for {oldest}"
    return [*_labelled("Traffic", texts, width), *_labelled("Ingest", [(f"{ingested}; {waiting}", "")], width)]


def _version(one: Serving) -> str:
    latency = f"p50 {one.p50_ms:,.0f}, p95 {one.p95_ms:,.0f} ms" if one.p50_ms is not None and one.p95_ms is not None else "no latency"
    share = f" ({one.errors / one.requests:.1%})" if one.errors and one.requests else ""
    return f"{one.tag} {one.requests:,}, {one.errors:,} errors{share}, {one.refused:,} invalid, {latency}"


def _next(screen: Screen, width: int, compact: int) -> list[Row]:
    when = f": {_clock(screen.next_at, screen.at)}" if screen.next_at else ""
    texts = [(text, "") for text in textwrap.wrap(visible(f"{screen.next}{when}"), width - _LABEL)[:2]]
    if screen.detail:
        wrapped = textwrap.wrap(" ".join(visible(screen.detail).split()), width - _LABEL)
        most = 2 if compact <= 1 else 1
        texts += [(text, "dim") for text in [*wrapped[: most - 1], " ".join(wrapped[most - 1 :])] if text]
    must = screen.who != "nobody"
    style = "bold black on yellow" if must else ""
    commands = list(screen.commands)
    who: list[tuple[str, str]] = [(f"{screen.who} must act:" if must else "nobody has to", style)]
    if must:
        who += [(f"  {command}", "bold") for command in commands[: 3 if compact < 2 else 2]]
    elif commands:
        who = [(f"nobody has to; possible: {commands[0]}", "")]
    return [*_labelled("Next", texts, width), *_labelled("Act", who, width)]
