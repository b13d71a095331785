"""One complete cycle of a real line whose source, dialect, reward, trainer, server, check, router and metrics are those of the example.

The package is installed as a built wheel. The model server and the training job are real processes; the gateway is a test that writes its
access log.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from ratchet.contracts.data.datasets import IngestReport
from ratchet.contracts.ids import ingest_stream, rollout_stream
from ratchet.contracts.serving import Route
from ratchet.contracts.steps import PlanResult, State
from ratchet.flows.cli.main import cli
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.folds.rollout import RolloutView
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.ingest import ingest
from ratchet.flows.engine.line import adopt, open_cycle
from ratchet.flows.engine.reconcile import reconcile
from ratchet.flows.engine.work import turn
from ratchet.runtime.extensions import ExtensionKind, load
from tests.example_plugin import NAMES, PLUGIN, on_path

pytestmark = [pytest.mark.timeout(900)]

QUESTIONS = 120
ASKED = datetime(2026, 11, 1, tzinfo=UTC)


class Played(NamedTuple):
    """The line after its cycle, and what was seen on the way."""

    context: LineContext
    loop: Path
    report: IngestReport
    again: IngestReport
    cycle: CycleView
    rollout: RolloutView
    routes: list[Route]


def records() -> Iterator[dict[str, Any]]:
    """Yield three answers to each question, of which one names a ticket, and some records that are no traces."""
    for number in range(QUESTIONS):
        for turn_number, reply in enumerate(("I do not know.", "see OPS-1", "please wait")):
            yield {
                "tool": "support-chat",
                "id": f"{number}-{turn_number}",
                "at": (ASKED + timedelta(minutes=number)).isoformat(),
                "customer": f"c{number}",
                "question": f"question number {number}?",
                "reply": reply,
                "agreed": True,
                "expected": "see OPS-1",
                "stars": 5 if "OPS" in reply else 2,
            }
    yield {"tool": "support-chat", "automatic": True}
    yield {"tool": "support-chat", "id": "x", "at": ASKED.isoformat()}
    yield {"tool": "support-chat", "id": "y", "at": ASKED.isoformat(), "question": "?", "reply": "!", "agreed": True, "stars": "many"}


def write_line(folder: Path) -> Path:
    """Write the example's loop file, the exports and version 0 below `folder`, and return the loop file."""
    (folder / "exports").mkdir(parents=True)
    lines = [json.dumps(record) for record in records()]
    (folder / "exports" / "2026-11-01.chat.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "exports" / "notes.txt").write_text("not an export")
    (folder / "model").mkdir()
    header = json.dumps({"__metadata__": {"answer": "I do not know."}}).encode()
    (folder / "model" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (folder / "model" / "config.json").write_text("{}")
    loop = folder / "loop.toml"
    text = (PLUGIN / "loop.toml").read_text().replace("/var/log/gateway/access.log", str(folder / "access.log"))
    loop.write_text(text.replace("max_ratio = 2.0", "max_ratio = 2.0\nfast_ms = 60000.0"))  # a busy machine must not decide the gate
    return loop


def answer_requests(log: Path, route: Route) -> None:
    """Append what a gateway logs: requests of both versions by their weights, of which those of the candidate are rated better."""
    champion, candidate = route.backends
    with log.open("a") as file:
        for number in range(400):
            version, rating = (candidate, 0.9) if number % 100 < candidate.weight else (champion, 0.4)
            line = {"time": datetime.now(UTC).isoformat(), "version": version.tag, "status": 200, "ms": 20.0}
            line |= {"session": f"s{number}", "user": f"u{number}", "rating": rating}
            file.write(json.dumps(line) + "\n")


@pytest.fixture(scope="module")
def played(example_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    folder = tmp_path_factory.mktemp("line")
    loop = write_line(folder)
    with on_path(example_wheel), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_HOME", str(folder / "home"))
        installation = Installation(Home.from_environment())
        context = installation.context(loop)
        try:
            report, again = ingest(context), ingest(context)
            adopt(context, folder / "model", "ada")
            reconcile(context)
            cycle, routes = open_cycle(context, "test"), []
            limit = time.monotonic() + 300
            while (view := context.cycle_view(cycle)).state not in (State.PROMOTED, State.FAILED, State.HELD, State.REJECTED):
                assert time.monotonic() < limit, view.state
                turn(installation.cycle_context(view), view)
                if view.state is State.ROLLING and view.candidate:
                    routes.append(context.router.read("support"))
                    if len(routes[-1].backends) == 2:
                        answer_requests(folder / "access.log", routes[-1])
                time.sleep(0.1)
            rollout = context.rollout_view(rollout_stream(cycle))
            assert rollout is not None, (view.state, view.reason)
            yield Played(context, loop, report, again, view, rollout, routes)
        finally:
            for endpoint in context.server.running():
                context.server.stop(endpoint.tag)


def test_the_source_and_the_dialect_are_counted_by_the_ingest(played: Played) -> None:
    counts = played.report.traces
    assert (counts.read, counts.kept, counts.skipped, counts.quarantined) == (3 * QUESTIONS + 3, 3 * QUESTIONS, 1, 2)
    assert counts.reasons == {"automatic_reply": 1, "no_question": 1, "dialect_failed": 1}
    assert played.report.feedback.kept == 3 * QUESTIONS
    assert played.again == IngestReport(), "the source remembers what it has delivered"


def test_the_reward_and_the_trainer_are_in_the_plan(played: Played) -> None:
    plan = played.cycle.plan
    assert plan is not None
    assert [(scorer.name, scorer.distribution, scorer.version) for scorer in plan.scorers] == [
        ("mentions_ticket", "example-plugin", "1.0.0")
    ]
    assert plan.recipe == {"steps": 1, "min_count": 5}
    (trainer,) = played.cycle.result(PlanResult).trainers
    assert (trainer.name, trainer.distribution, trainer.version) == ("canned-sft", "example-plugin", "1.0.0")


def test_the_job_of_the_trainer_has_published_its_model(played: Played) -> None:
    assert played.cycle.checkpoint is not None
    assert played.cycle.checkpoint.metrics["demonstrations"] > 10
    assert played.cycle.candidate is not None
    manifest = json.loads(played.context.artifacts.get(played.cycle.candidate.model.files))
    weights = played.context.artifacts.get(manifest["files"]["model.safetensors"])
    assert json.loads(weights[8:])["__metadata__"]["answer"] == "see OPS-1"


def test_the_check_has_its_part_in_the_verdict(played: Played) -> None:
    verdict = played.cycle.verdict
    assert verdict is not None
    names = [check.check for check in verdict.checks]
    assert names == ["coverage", "quality", "slices", "erosion", "agreement", "length", "cut", "safety", "suites", "latency"]
    told = CliRunner().invoke(cli, ["explain", "support/1"])
    assert "Checks of other packages: latency (example-plugin 1.0.0)." in told.output
    assert "the limit is x2" in verdict.checks[-1].reason, "the options come from gate.checks.latency"
    assert [(one.name, one.distribution) for one in verdict.versions][-2:] == [("suites", "ratchet"), ("latency", "example-plugin")]


def test_the_rollout_used_the_server_the_router_and_the_metrics(played: Played) -> None:
    assert played.cycle.state is State.PROMOTED, played.cycle.reason
    candidate = played.cycle.candidate
    assert candidate is not None
    weights = [{backend.tag: backend.weight for backend in route.backends}[candidate.tag] for route in played.routes]
    assert [weight for weight, _ in groupby(weights)] == [50, 90, 100], "the last step keeps a holdback of ten percent"
    assert played.context.router.read("support").backends[0].tag == candidate.tag  # type: ignore[union-attr]
    assert candidate.tag in {endpoint.tag for endpoint in played.context.server.running()}
    assert [(one.name, one.distribution) for one in played.rollout.opened.metrics] == [("access-log", "example-plugin")]
    assert all(row.data["judgement"]["requests"] > 0 for row in played.rollout.judgements[-1:])


def test_the_ledger_names_the_dialects_of_each_batch(played: Played) -> None:
    (stream,) = played.context.ledger.streams(ingest_stream("support", ""))
    done = next(row for row in played.context.ledger.read(stream) if row.kind == "done")
    assert [(one["name"], one["distribution"]) for one in done.data["dialects"]] == [
        ("jsonl", "ratchet"), ("langfuse", "ratchet"), ("litellm", "ratchet"), ("otlp", "ratchet"), ("review", "ratchet"),
        ("support-chat", "example-plugin"),
    ]  # fmt: skip


def test_doctor_and_check_list_the_extensions(played: Played) -> None:
    said = CliRunner().invoke(cli, ["doctor", "--json"])
    groups = {finding["about"]: finding["text"] for finding in json.loads(said.stdout)}
    for kind in ExtensionKind:
        assert f"{NAMES[kind.value]} (example-plugin 1.0.0)" in groups[kind.group]
    checked = CliRunner().invoke(cli, ["check", str(played.loop), "--json"])
    assert checked.exit_code == 0, checked.output
    texts = [finding["text"] for finding in json.loads(checked.stdout)["findings"]]
    assert "sft on canned-sft: 2 settings" in texts
    assert any(text.endswith("latency (example-plugin 1.0.0)") for text in texts)


@pytest.mark.parametrize(
    ("found", "wrong", "said"),
    [
        ('kind = "chat-exports"', 'kind = "chat-export"', "no source 'chat-export' is installed; did you mean 'chat-exports'?"),
        (
            'router = "gateway-file"',
            'router = "nginx"',
            "no router 'nginx' is installed; installed: gateway, gateway-file, kubernetes, local",
        ),
        ('metrics = "access-log"', 'metrics = "acess-log"', "did you mean 'access-log'?"),
        ('sft_on = "canned-sft"', 'sft_on = "dpo"', "trainer 'dpo' trains dpo, not sft"),
        ("[gate.checks.latency]", "[gate.checks.latencies]", "gate.checks.latencies: no check 'latencies' is installed"),
        ("max_ratio = 2.0", "max_ration = 2.0", "gate.checks.latency.max_ration: check 'latency' (example-plugin 1.0.0) has no option"),
        ('ending = ".chat.jsonl"', "ending = 3", "sources.chat.options.ending: source 'chat-exports' (example-plugin 1.0.0) rejects 3"),
        ("patience = 60", 'patience = "long"', "serving.options.patience: server 'canned'"),
        (
            'file = "gateway.json", ',
            "",
            "serving.router_options.file: router 'gateway-file' (example-plugin 1.0.0) needs the option 'file'",
        ),
        ("metrics_options = {", 'metrics_options = { url = "x",', "rollout.metrics_options.url: metrics 'access-log'"),
        ('prefix = "OPS-"', 'prefixes = "OPS-"', "rewards.mentions_ticket.options.prefixes: reward 'mentions_ticket'"),
        ("min_count = 5", "min_counts = 5", "sft on canned-sft: unknown key 'min_counts'; did you mean 'min_count'?"),
    ],
)
def test_a_wrong_setting_is_named(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str, wrong: str, said: str
) -> None:
    loop = write_line(tmp_path / "line")
    text = loop.read_text()
    assert found in text
    loop.write_text(text.replace(found, wrong))
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
    result = CliRunner().invoke(cli, ["check", str(loop)])
    assert result.exit_code != 0
    assert said in (str(result.exception) + result.output)


def test_nothing_of_the_package_applies_once_it_is_removed(played: Played) -> None:
    assert load(ExtensionKind.CHECK, "coverage").distribution == "ratchet"
