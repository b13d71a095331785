"""kill -9 while a line asks its teacher: stored answers survive, no question is sent twice, and the budget counts what was sent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ratchet.contracts.ids import teacher_stream
from ratchet.flows.composition.ports import open_ledger
from ratchet.flows.config.home import Home
from ratchet.flows.core.asking.teaching import fold_teacher
from ratchet.materializer.lake.tables import Lake
from tests import command
from tests.e2e.faq_line import LOOP, TEACHER, right, traffic
from tests.judge_stub import Stub, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = (3, 9, 10, 25, 60)
"""Numbers of the requests at which the asking process is killed: the odd ones before the reply, the others just after it."""


def test_a_killed_asking_loses_no_stored_answer_and_pays_for_no_question_twice(tmp_path: Path) -> None:
    traffic(tmp_path)
    home, loop = Home(tmp_path / "home"), tmp_path / "faq.toml"
    asking: list[subprocess.Popen[bytes]] = []
    kills = list(KILLS)

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(asking[-1].pid, signal.SIGKILL)

    def answer(body: dict[str, Any]) -> str:
        if kills and stub.requests >= kills[0]:
            number = kills.pop(0)
            if number % 2:
                kill()
            else:
                threading.Timer(0.02, kill).start()
        return right(body["messages"][-1]["content"])

    stub = Stub(answer, key="k-secret")
    environment = command.environment(home.root, TEACHER_KEY="k-secret")
    with serving(stub):
        loop.write_text(LOOP + TEACHER.format(url=stub.url))
        assert command.ratchet("ingest", loop, home=home.root).returncode == 0
        killed = 0
        for _ in range(len(KILLS) + 2):
            with (tmp_path / "out").open("wb") as out:
                call = [*command.RATCHET, "teacher", "ask", str(loop), "--json"]
                asking.append(subprocess.Popen(call, env=environment, stdout=out, stderr=out, start_new_session=True))
                code = asking[-1].wait(200)
            if code == 0:
                break
            assert code == -signal.SIGKILL, (tmp_path / "out").read_text()
            killed += 1
        assert killed == len(KILLS)
        told = json.loads((tmp_path / "out").read_text())

    sent = Counter(body["messages"][-1]["content"] for body in stub.bodies)
    assert set(sent.values()) == {1}, "no question was sent twice"
    entries = open_ledger(home).read(teacher_stream("faq"))
    view = fold_teacher(entries)
    requests, cost = view.spent(entries[0].at.replace(year=2000))
    assert stub.requests <= requests <= stub.requests + killed, "a request that was about to be sent counts, too"
    assert told["outcomes"]["interrupted"] <= killed
    stored = sum(row.kind == "got" and row.data["outcome"] == "answered" for row in entries)
    assert stored == told["outcomes"]["answered"] >= stub.requests - killed
    taught = Lake(home.lake("faq")).scan("feedback").filter(pl.col("kind") == "teacher")
    assert len(taught) == stored, "each stored answer is in the lake, once"
    assert cost >= sum(row.data["cost"] for row in entries if row.kind == "got")
    assert [row.kind for row in entries].count("round") == 1
