"""The libraries of the harness: how each program starts, and the places where its users are told to name their consent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ratchet.contracts.serving import Backend, Route
from tests import serving_site
from tests.harness import script
from tests.harness.compare import Rules
from tests.harness.model_server import Export, Log, serving

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = Path(os.environ.get("HARNESS_ENVIRONMENTS", ROOT / ".venv-harness"))
"""Folder of the environments: of the pinned releases, or of the newest ones."""
SECONDS = 240
"""Time limit of a program."""
QUIET = {
    "DO_NOT_TRACK": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "TRACELOOP_TELEMETRY": "false",
    "TRACELOOP_METRICS_ENABLED": "false",
    "TRACELOOP_LOGGING_ENABLED": "false",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "0",
    "OTEL_METRICS_EXPORTER": "none",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""Environment without telemetry of the libraries themselves, and without look-ups."""


@dataclass(frozen=True)
class Library:
    """One set-up of a library."""

    name: str
    module: str
    """Program below `programs`, and its arguments."""
    places: tuple[str, ...]
    """Places whose consent the loop file names."""
    packages: tuple[str, ...]
    """Packages whose versions the result names."""
    environment: str = "python"
    variables: tuple[tuple[str, str], ...] = ()
    routed: bool = False
    alike: tuple[tuple[str, str], ...] = ()
    """Roles that the library writes as other ones into its request."""
    faults: tuple[tuple[str, str], ...] = ()
    """(scene, what the exporter writes wrongly so that no reader can notice it)."""

    @property
    def rules(self) -> Rules:
        """What the comparison must know about the library."""
        return Rules(self.places, dict(self.alike), dict(self.faults))


def _captured(where: str) -> tuple[str, str]:
    """Return the variable that tells the instrumentation where to write content."""
    return "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", where


_PLAIN = ("metadata",)


def _framework(name: str, program: str, *packages: str) -> Library:
    """Return a framework whose users name the consent in the place `metadata`."""
    return Library(name, f"frameworks.{program}", _PLAIN, packages, "frameworks")


_V2 = ("opentelemetry-instrumentation-openai-v2", "openai")
_LATEST = ("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental")
LIBRARIES = (
    Library("ratchet router", "plain_openai", _PLAIN, ("openai",), routed=True),
    Library("langfuse openai", "langfuse_openai", ("langfuse.trace.metadata",), ("langfuse", "openai")),
    Library("openinference openai", "openinference openai", _PLAIN, ("openinference-instrumentation-openai", "openai")),
    Library("openinference anthropic", "openinference anthropic", _PLAIN, ("openinference-instrumentation-anthropic", "anthropic")),
    Library("openinference langchain", "openinference langchain", _PLAIN, ("openinference-instrumentation-langchain", "langchain-openai")),
    Library("openinference agents", "agents_sdk", _PLAIN, ("openinference-instrumentation-openai-agents", "openai-agents")),
    Library(
        "openllmetry openai",
        "openllmetry openai",
        ("traceloop.association.properties",),
        ("traceloop-sdk", "opentelemetry-instrumentation-openai"),
    ),
    Library(
        "openllmetry anthropic",
        "openllmetry anthropic",
        ("traceloop.association.properties",),
        ("traceloop-sdk", "opentelemetry-instrumentation-anthropic"),
        faults=tuple((scene, "the output tokens of a stream, which are one too many") for scene in ("stream", "tool_stream")),
    ),
    Library(
        "openllmetry langchain",
        "openllmetry langchain",
        ("traceloop.association.properties",),
        ("traceloop-sdk", "opentelemetry-instrumentation-langchain"),
    ),
    *(Library(f"pydantic-ai v{n}", f"pydantic_agents {n}", _PLAIN, ("pydantic-ai-slim", "openai", "anthropic")) for n in (2, 5, 6)),
    Library("litellm callback", "litellm_callback", ("metadata.spend_logs_metadata",), ("litellm",), alike=(("developer", "system"),)),
    Library("strands", "strands_agents", _PLAIN, ("strands-agents",), "other"),
    Library("strands latest", "strands_agents", _PLAIN, ("strands-agents",), "other", (_LATEST,)),
    Library(
        "otel openai-v2 messages",
        "otel_openai_v2",
        _PLAIN,
        _V2,
        "other",
        (_captured("true"),),
        faults=(("said", "the text beside the calls of an earlier answer"),),
    ),
    Library("otel openai-v2 events", "otel_openai_v2", _PLAIN, _V2, variables=(_LATEST, _captured("EVENT_ONLY"))),
    Library("otel openai-v2 spans", "otel_openai_v2", _PLAIN, _V2, variables=(_LATEST, _captured("SPAN_ONLY"))),
    *(_framework(f"mlflow {form}", f"mlflow_tracing {form}", "mlflow", "openai") for form in ("native", "genai")),
    _framework("logfire", "logfire_openai", "logfire", "openai"),
    _framework("llama-index", "llama_index_agents", "llama-index-core", "openinference-instrumentation-llama-index"),
    _framework("smolagents", "models smolagents", "smolagents", "openinference-instrumentation-smolagents"),
    _framework("dspy", "models dspy", "dspy", "openinference-instrumentation-dspy"),
    replace(_framework("agno", "agents agno", "agno", "openinference-instrumentation-agno"), alike=(("system", "developer"),)),
    _framework("agent-framework", "agents agent-framework", "agent-framework-core"),
    Library("ai sdk", "ai_sdk.mjs", ("ai.telemetry.metadata",), ("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible"), "node"),
)


def missing(library: Library) -> str | None:
    """Return why a library cannot run on this machine; None if it can."""
    if library.environment == "node" and shutil.which("node") is None:
        return "node is not installed"
    failed = ENVIRONMENTS / f"{library.environment}.failed"
    if failed.exists():
        return f"its installation failed: {' '.join(failed.read_text().split())[-200:]}"
    made = ENVIRONMENTS / "node" / "node_modules" if library.environment == "node" else _python(library)
    return None if made.exists() else f"the environment {library.environment} is missing; run `make harness`"


def _python(library: Library) -> Path:
    return ENVIRONMENTS / library.environment / "bin" / "python"


def versions(library: Library) -> dict[str, str]:
    """Return the installed versions of the packages of a library."""
    if library.environment == "node":
        folders = {name: ENVIRONMENTS / "node" / "node_modules" / name / "package.json" for name in library.packages}
        return {name: str(json.loads(path.read_text())["version"]) for name, path in folders.items()}
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    ran = subprocess.run([_python(library), "-c", code, *library.packages], capture_output=True, text=True, check=True)
    return dict(json.loads(ran.stdout))


def called(library: Library) -> list[tuple[dict[str, Any], list[tuple[str, Any]]]]:
    """Run the program of a library. Return the truth of each call with its exports as (form, record).

    Raises RuntimeError if the program fails, or asks something that the model server does not know.
    """
    log = Log()
    with serving(log) as url, _before(library, url) as address:
        variables = {"HARNESS_URL": address, "HARNESS_RECEIVER": url, "HARNESS_NODE": str(ENVIRONMENTS / "node")}
        given = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR") if key in os.environ}
        ran = subprocess.run(
            _command(library),
            cwd=ROOT,
            env=given | QUIET | variables | dict(library.variables),
            input=_script() if library.environment == "node" else "",
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    if ran.returncode or log.errors:
        raise RuntimeError(
            f"{library.name}: exit {ran.returncode}\n" + "\n".join(log.errors)[:4000] + ran.stdout[-1000:] + ran.stderr[-4000:]
        )
    return _matched([(truth, [record_of(export) for export in exports]) for truth, exports in log.calls()])


def _matched(calls: list[tuple[dict[str, Any], list[tuple[str, Any]]]]) -> list[tuple[dict[str, Any], list[tuple[str, Any]]]]:
    """Give each record that names the response of one call to that call: a span may end after the next call has begun."""
    places = {truth["response_id"]: place for place, (truth, _) in enumerate(calls)}
    found: list[tuple[dict[str, Any], list[tuple[str, Any]]]] = [(truth, []) for truth, _ in calls]
    for place, (_, records) in enumerate(calls):
        for record in records:
            text = json.dumps(record)
            named = [other for name, other in places.items() if name in text]
            found[named[0] if len(named) == 1 else place][1].append(record)
    return found


def _command(library: Library) -> list[str]:
    name, *arguments = library.module.split()
    if library.environment == "node":
        return ["node", str(ROOT / "tests" / "harness" / "programs" / "node" / name)]
    return [str(_python(library)), "-m", f"tests.harness.programs.{name}", *arguments]


def _script() -> str:
    """Return the script as JSON, for programs that are not in Python."""
    scenes = [asdict(scene) | {"user": scene.user, "session": scene.session} for scene in script.SCENES.values()]
    calls = [asdict(call) for call in (script.TIDE, script.WIND, script.SWELL)]
    head = {"model": script.MODEL, "system": script.SYSTEM, "pixels": script.PIXELS, "earlier": script.EARLIER}
    return json.dumps({**head, "tools": script.TOOLS, "scenes": scenes, "calls": calls})


@contextmanager
def _before(library: Library, url: str) -> Iterator[str]:
    """Yield the address that the program calls: of the model server, or of a router before it."""
    if not library.routed:
        yield url
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "receiver.json").write_text(json.dumps({"port": int(url.rpartition(":")[2])}))
        with serving_site.started(folder) as router:
            backend = Backend(tag="v1", url=url, model=script.MODEL, weight=100)
            router.set(Route(line="line", served_model=script.MODEL, backends=(backend,), annotation="harness"))
            yield router.url()


def record_of(export: Export) -> tuple[str, Any]:
    """Return the form and the record of an export, protobuf in its JSON form."""
    if export.path == "/litellm":
        return "litellm", json.loads(export.body)
    if "json" in export.kind:
        return "otlp-json", json.loads(export.body)
    message = (ExportLogsServiceRequest if export.path == "/v1/logs" else ExportTraceServiceRequest)()
    message.ParseFromString(export.body)
    return "otlp-json", dict(MessageToDict(message, use_integers_for_enums=True))
