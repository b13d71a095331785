"""An installation whose texts all carry a marker of their user, and a search for markers in every file of a folder."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ratchet.contracts.cycle import Append, Row
from ratchet.contracts.data.senders import Role, Sender
from ratchet.contracts.evaluation import ChatRequest
from ratchet.contracts.fakes.serving import FakeClient
from ratchet.contracts.ids import line_stream, version_tag
from ratchet.contracts.jobs.training import Checkpoint
from ratchet.contracts.model import ModelRef
from ratchet.contracts.serving import Endpoint, ModelVersion
from ratchet.contracts.steps import AcceptResult, State, Step
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.effects import EFFECTS, job_of
from ratchet.flows.engine.ingest import ingest
from ratchet.flows.engine.line import adopt, open_cycle
from ratchet.materializer.receive.spool import FolderSpool
from ratchet.runtime.jobs.run_folder import RunFolders
from tests.unit.materializer.records import evaluation, log, logs, span, spans

SHOP = Sender(name="shop", roles=(Role.TRACES, Role.FEEDBACK))
LINE = "shop"
LOOP = """
[line]
name = "shop"
served_model = "shop"
[[sources]]
name = "in"
kind = "receiver"
[[rewards]]
name = "exact_match"
[[rewards]]
name = "user_feedback"
[snapshot]
references_are_answers = true
[probe]
prompts = 20
samples = 2
[training]
methods = ["sft"]
min_demonstrations = 5
min_teachable = 1
[holdout]
fraction = 0.3
"""


def user(n: int) -> str:
    """The id of user `n` as the application sends it. It is itself a marker."""
    return f"zq{n:03d}zq-id"


def marker(n: int) -> str:
    """The text that all texts of user `n` contain, and nothing else does."""
    return f"zq{n:03d}zq"


def requests(n: int, name: Callable[[int], str] = user) -> Iterator[dict[str, Any]]:
    """The traces of user `n`, and what the user says about them and about a trace of the next user."""
    mark, texts = marker(n), ("where", "when")
    for k, word in enumerate(texts):
        number = 2 * n + k + 1
        prompt, answer = f"{mark} {word} is my parcel?", f"{mark} was lost"
        more = {"user__id": name(n), "session__id": f"session of {name(n)}", "metadata__reference": f"{mark} is on its way"}
        yield spans(span(number, prompt, answer, gen_ai__response__id=f"r-{number}", **more))
    first = log(2 * n + 1, evaluation("user_correction", text=f"{mark} arrives tomorrow", user__id=name(n)))
    rated = log(2 * n + 2, evaluation("user_feedback", 0.0, user__id=name(n)))
    other = log(2 * n + 3, evaluation("user_correction", text=f"{mark} thinks it arrives today", user__id=name(n)))
    yield logs(first, rated, other)


def fill(home: Home, people: range, line: str = LINE, name: Callable[[int], str] = user) -> None:
    """Put the requests of these people into the spool of a line. `name` returns the id of a person."""
    spool = FolderSpool(home.spool(line))
    for n in people:
        for request in requests(n, name):
            spool.put_json(SHOP, json.dumps(request).encode())
        bad = span(10_000 + n, f"{marker(n)} broken", user__id=name(n)) | {"startTimeUnixNano": "never"}
        spool.put_json(SHOP, json.dumps(spans(bad)).encode())


class Server(FakeClient):
    """A server of every version, whose answers quote the prompts."""

    def __init__(self) -> None:
        super().__init__(lambda request: f"about {_asked(request)}")

    def ensure(self, version: ModelVersion) -> Endpoint:
        return Endpoint(tag=version.tag, url="http://127.0.0.1:1", model="shop")

    def running(self) -> list[Endpoint]:
        return []


def _asked(request: ChatRequest) -> str:
    return str(request.messages[-1]["content"])


def install(folder: Path, people: int) -> tuple[Installation, LineContext]:
    """Build an installation with a model, the ingested traffic of these people, and a loop file beside the home folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "loop.toml").write_text(LOOP)
    model = folder / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (model / "config.json").write_text("{}")
    installation = Installation(Home(folder / "home"))
    context = opened(installation, folder)
    adopt(context, model, "ada")
    fill(installation.home, range(people))
    ingest(context)
    return installation, context


def opened(installation: Installation, folder: Path, file: str = "loop.toml") -> LineContext:
    """The context of a line, with servers that answer at once, and without the process that looks at the model before a training."""
    server = Server()
    context = installation.context(folder / file)
    return replace(context, server=server, client=lambda _endpoint: server, heartbeat=False, cost=None, before_training=None)  # type: ignore[arg-type]


def append(context: LineContext, stream: str, *rows: Row) -> None:
    """Append rows to a stream."""
    after = len(context.ledger.read(stream))
    context.ledger.append([Append(stream=stream, after=after, rows=rows)], None, context.clock.now())


def perform(context: LineContext, cycle: str, *steps: Step) -> CycleView:
    """Perform the effects of these steps and record them."""
    for step in steps:
        result = EFFECTS[step](context, context.cycle_view(cycle), str(step)).model_dump(mode="json")
        append(context, cycle, Row(kind="intended", key=str(step)), Row(kind="done", key=str(step), data=result))
    return context.cycle_view(cycle)


def planned(context: LineContext, home: Home) -> CycleView:
    """Open a cycle and plan it, with the run folder of its first job."""
    cycle = perform(context, open_cycle(context, "test"), Step.FREEZE, Step.PROBE, Step.PLAN)
    assert cycle.plan is not None, cycle.choice
    RunFolders(home.jobs(context.line)).lay_out(job_of(context, cycle, 1), context.artifacts)
    return cycle


def promoted(context: LineContext, home: Home, seed: str = "1") -> ModelVersion:
    """Run a cycle to the promotion of a version, without a training."""
    cycle = planned(context, home)
    plan = cycle.plan
    assert plan is not None
    base = cycle.start.model
    model = ModelRef(**{**base.model_dump(), "weights": seed * 64})
    checkpoint = Checkpoint(plan=plan.id, attempt=1, incarnation=1, step=1, files=base.files, model=model, metrics={})
    version = ModelVersion(
        line=context.line, number=cycle.number, tag=version_tag(checkpoint.id), model=model, cycle=cycle.id, plan=plan.id
    )
    accepted = AcceptResult(checkpoint=checkpoint, version=version).model_dump(mode="json")
    append(context, cycle.id, Row(kind="done", key=str(Step.ACCEPT), data=accepted))
    perform(context, cycle.id, Step.EVALUATE, Step.JUDGE)
    append(context, cycle.id, Row(kind="ended", key=State.PROMOTED, data={"reason": "test"}))
    ended = Row(kind="cycle_ended", key=cycle.id, data={"state": State.PROMOTED, "reason": "test", "evaluated": True})
    champion = Row(kind="champion", key=version.tag, data={"version": version.model_dump(mode="json"), "cycle": cycle.id})
    append(context, line_stream(context.line), ended, champion)
    return version


# --- the search

_MARK = re.compile(rb"zq(\d{3})zq")


def marks_in(folder: Path) -> dict[int, set[str]]:
    """Return each user whose marker is in a file below the folder, with the files. Compressed parts of files are searched, too."""
    found: dict[int, set[str]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            for text in [str(path).encode(), *_parts(path)]:
                for match in _MARK.finditer(text):
                    found.setdefault(int(match[1]), set()).add(str(path.relative_to(folder)))
    return found


def _parts(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    yield data
    if data.startswith(b"PAR1"):
        table = pq.read_table(io.BytesIO(data))
        yield repr(table.to_pylist()).encode()
        yield repr(pq.read_metadata(io.BytesIO(data)).to_dict()).encode()
    elif data.startswith(b"Obj\x01"):
        yield from _avro_blocks(data)
    elif data.startswith(b"\x1f\x8b"):
        yield gzip.decompress(data)


def _avro_blocks(data: bytes) -> Iterator[bytes]:
    """Yield the header and the blocks of an Avro file, decompressed."""
    at, header = 4, {}
    while True:
        count, at = _long(data, at)
        if count == 0:
            break
        if count < 0:
            count, (_, at) = -count, _long(data, at)
        for _ in range(count):
            size, at = _long(data, at)
            key, at = data[at : at + size], at + size
            size, at = _long(data, at)
            header[key], at = data[at : at + size], at + size
    codec = header.get(b"avro.codec", b"null")
    assert codec in (b"null", b"deflate"), codec
    at += 16
    while at < len(data):
        _, at = _long(data, at)
        size, at = _long(data, at)
        block, at = data[at : at + size], at + size + 16
        yield zlib.decompress(block, -15) if codec == b"deflate" else block


def _long(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
