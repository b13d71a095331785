"""Kills of every process of a running service, at random moments of a cycle: the cycle ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from ratchet.contracts.data.senders import Role
from ratchet.contracts.ids import cycle_stream, rollout_stream
from ratchet.contracts.steps import EvaluateResult, FreezeResult, PlanResult, State
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from ratchet.flows.engine.ingest import ingest
from ratchet.flows.prefect import server
from ratchet.materializer.lake.tables import Lake
from tests import command, prefect_database
from tests.soak_results import record
from tests.toy_line import Users, write_loop, write_model, write_traffic
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

LINE = "toy"
CYCLE = cycle_stream(LINE, 1)
PROCESSES = {
    "service": "ratchet.flows.cli.main serve",
    "prefect": "ratchet.flows.prefect.server",
    "receiver": "ratchet.materializer.receive.receiver",
    "router": "ratchet.router",
    "model server": "ratchet.local.serve",
    "job": "ratchet.trainers.job",
}
"""Kind of process -> part of its command line."""
ROWS = 22
"""About the number of rows that a cycle and its rollout write. Kills are spread over them."""


class Site:
    """An installation with one line, whose service is started again when it ends, as systemd does."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.home = Home(folder / "home")
        prefect_database.place(self.home)
        self.folder = folder
        self.loop = write_loop(folder)
        self.log = folder / "serve.log"
        self.told: list[str] = []
        self.over = threading.Event()
        adopted = command.ratchet("adopt", self.loop, model, "--by", "ada", home=self.home.root)
        assert adopted.returncode == 0, adopted.stderr
        self.installation = Installation(self.home)
        self.context = self.installation.context(self.loop)
        store = open_credentials(self.home, LINE)
        token = store.add("people", [Role.FEEDBACK]).read_text()
        self.users = Users(self.home, LINE, token, lambda: len(self.rows()) >= 2)  # from the freeze of the data to the end

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve the line, with users who ask through the router, until the block ends."""
        supervisor = threading.Thread(target=self._supervise, daemon=True)
        supervisor.start()
        try:
            with self.users:
                yield
        finally:
            self.over.set()
            supervisor.join(120)
            stopped = command.ratchet("serve", "--stop", self.loop, home=self.home.root)
            assert stopped.returncode == 0, stopped.stderr

    def _supervise(self) -> None:
        serve = [*command.RATCHET, "serve", str(self.loop)]
        with self.log.open("ab") as log:
            while not self.over.is_set():
                process = subprocess.Popen(serve, env=command.environment(self.home.root), stdout=log, stderr=log, start_new_session=True)
                while process.poll() is None and not self.over.wait(0.2):
                    pass

    def rows(self) -> list[Any]:
        """Return the rows of the cycle and its rollout."""
        return [*self.installation.ledger.read(CYCLE), *self.installation.ledger.read(rollout_stream(CYCLE))]

    def ended(self) -> bool:
        """Return whether the cycle has ended."""
        view = self.installation.cycle(LINE, 1)
        return view is not None and view.ended

    def processes(self, kind: str) -> list[psutil.Process]:
        """Return the processes of this installation of a kind."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if (
                    PROCESSES[kind] in line
                    and "--stop" not in line
                    and (str(self.folder) in line or str(self.folder) in str(process.environ()))
                ):
                    found.append(process)
        return found

    def kill(self, kind: str, seconds: float = 60.0) -> bool:
        """Kill the processes of a kind as soon as there is one, within `seconds`. Return whether there was one."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and not self.ended():
            found = self.processes(kind)
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    os.kill(process.pid, signal.SIGKILL)
            if found:
                self.told.append(f"killed {kind} after {len(self.rows())} rows")
                return True
            time.sleep(0.05)
        return False


def disturb(site: Site, seed: int, kills: int) -> Counter[str]:
    """Kill processes while the cycle runs: every kind equally often, in random order, at random rows. Return the number by kind."""
    draw = random.Random(seed)
    kinds = (list(PROCESSES) * kills)[:kills]
    draw.shuffle(kinds)
    plan = sorted(draw.uniform(0, ROWS) for _ in kinds)
    done: Counter[str] = Counter()
    while kinds and not site.ended():
        if len(site.rows()) >= plan[0]:
            plan.pop(0)
            kind = "job" if "job" in kinds and site.processes("job") else next((one for one in kinds if one != "job"), kinds[0])
            kinds.remove(kind)
            time.sleep(draw.uniform(0, 1.0))
            done[kind] += site.kill(kind)
        time.sleep(0.05)
    return done


def replayed(site: Site) -> str:
    """Return the content digest of the snapshot that another installation freezes from the same recorded traffic."""
    context = Installation(Home(site.folder / "replayed")).context(site.loop)
    ingest(context)
    return str(context.datasets.freeze("replayed/freeze", context.clock.now(), context.datasets.edition(1)).content)


def check(site: Site) -> None:
    """Assert that the cycle has had the effects of an undisturbed one, each once, and that everything runs."""
    cycle = site.installation.cycle(LINE, 1)
    assert cycle is not None
    assert cycle.state is State.PROMOTED, cycle.reason
    done = Counter((row.stream, row.kind, row.key) for row in site.rows() if row.kind in ("done", "answered", "ended"))
    assert set(done.values()) == {1}, "an effect was recorded twice"
    line = site.installation.line(LINE)
    assert cycle.candidate is not None
    assert line.champion is not None
    assert line.champion.tag == cycle.candidate.tag
    until(lambda: site.context.registry.aliases(LINE)["champion"] == cycle.candidate.tag, 120, pause=0.5)
    route = until(lambda: site.context.router.read(LINE), 120)
    assert {backend.tag: backend.weight for backend in route.backends}[cycle.candidate.tag] >= 90
    until(lambda: all(len(site.processes(kind)) == 1 for kind in ("service", "prefect", "receiver", "router")), 180, pause=0.3)
    until(lambda: not site.processes("job"), 60, pause=0.3)
    until(lambda: _final(site), 240, pause=0.5, why=lambda: _runs(site))


def _runs(site: Site) -> list[tuple[str, str]]:
    """Return names and states of the runs in Prefect that belong to a cycle."""
    url = server.known_url(site.home)
    with contextlib.suppress(httpx.HTTPError, ValueError):
        reply = httpx.post(f"{url}/flow_runs/filter", json={}, headers=server.authorization(site.home), timeout=30, trust_env=False)
        if reply.status_code == 200:
            return [(run["name"], run["state_name"]) for run in reply.json() if not run["auto_scheduled"]]
    return [("", "Prefect does not answer")]


def _final(site: Site) -> bool:
    return _runs(site) == [(f"{LINE}/0001 promoted", "Completed")]


def check_traces(site: Site) -> None:
    """Assert that every answered request is in the lake, once."""
    seen = list(site.users.answered)  # the users go on
    answered = set(seen)

    def kept() -> Counter[str]:
        return Counter(Lake(site.home.lake(LINE)).scan("traces", ("id",))["id"].to_list())

    until(lambda: answered <= set(kept()), 120, pause=1.0, why=lambda: f"{len(answered - set(kept()))} of {len(answered)} are missing")
    assert len(seen) == len(answered)
    assert max(kept().values()) == 1
    assert len(answered) > 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that the line adopts."""
    return write_model(tmp_path_factory.mktemp("model"))


def live(site: Site, seed: int, kills: int) -> Counter[str]:
    """Serve the line through one cycle with kills, check everything, and return the number of kills by kind."""
    write_traffic(site.folder)
    with site.serving():
        until(lambda: site.installation.ledger.read(CYCLE), 240, pause=0.1, why=site.log.read_text)
        done = disturb(site, seed, kills)
        until(site.ended, 600, pause=0.5, why=lambda: (site.told, site.log.read_text()[-3000:]))
        check(site)
        check_traces(site)
    return done


def test_cycle_with_a_kill_of_every_process_ends_like_an_undisturbed_one(tmp_path: Path, model: Path) -> None:
    site = Site(tmp_path, model)
    done = live(site, seed=1, kills=len(PROCESSES))
    assert done == dict.fromkeys(PROCESSES, 1), site.told
    cycle = site.installation.cycle(LINE, 1)
    assert cycle is not None
    assert cycle.result(FreezeResult).snapshot.content == replayed(site)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_six_cycles_with_ten_kills_each_equal_the_undisturbed_one(tmp_path: Path, model: Path) -> None:
    (tmp_path / "calm").mkdir()
    calm = Site(tmp_path / "calm", model)
    live(calm, seed=0, kills=0)
    expected, total = comparable(calm), Counter[str]()
    for seed in range(6):
        (tmp_path / str(seed)).mkdir()
        site = Site(tmp_path / str(seed), model)
        total += live(site, seed=seed, kills=10)
        assert comparable(site) == expected, (seed, site.told)
    assert total.total() >= 55, total
    record("service_kills", {"cycles": 6, "kills": dict(sorted(total.items())), "promoted": 6, "different": 0})


def comparable(site: Site) -> dict[str, Any]:
    """Return the digests and results of the cycle, without what depends on the time: its steps, data, plan, weights, answers and end."""
    cycle = site.installation.cycle(LINE, 1)
    assert cycle is not None
    assert cycle.candidate is not None
    assert cycle.checkpoint is not None
    assert cycle.verdict is not None
    report = cycle.result(EvaluateResult).report
    return {
        "steps": list(dict.fromkeys(row.key.split("/")[0] for row in site.installation.ledger.read(CYCLE) if row.kind == "done")),
        "snapshot": cycle.result(FreezeResult).snapshot.content,
        "edition": cycle.result(FreezeResult).edition,
        "plan": cycle.result(PlanResult),
        "weights": cycle.checkpoint.files,
        "candidate": cycle.candidate.tag,
        "answers": report.answers,
        "comparisons": report.comparisons,
        "verdict": cycle.verdict.result,
        "end": cycle.state,
    }
