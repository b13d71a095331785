"""The service with a Prefect server that exists already: its login, its database on Postgres, and the paths and keys of Prefect Cloud.

The stub of Prefect Cloud has its addresses and keys, not its behaviour. Nothing here has run on Prefect Cloud.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest

from ratchet.contracts.steps import State
from ratchet.flows.config import variables
from tests import command
from tests.e2e.prefect_service import Service, eventually, outcome, wait_for_approval
from tests.e2e.prefect_teams import KEY, LOGIN, cloud_stub, prefect_server
from tests.postgres import PostgresServer, postgres_server

pytestmark = pytest.mark.slow

LINES = ("sim", "restart", "cloud")
"""One line per test, each with a cycle that waits for the approval of its training."""


@dataclass
class Team:
    """What a team has before it installs Ratchet, and the installation."""

    postgres: PostgresServer
    url: str
    service: Service

    @contextmanager
    def serving(self, url: str, headers: dict[str, str], **login: str) -> Iterator[Service]:
        """Run the service with this Prefect server and this login."""
        self.service.environment.update({"PREFECT_API_URL": url, **login})
        self.service.external = httpx.Client(base_url=url, headers=headers, auth=_basic(login), trust_env=False, timeout=30)
        try:
            self.service.start()
            yield self.service
        finally:
            self.service.stop()
            for name in login:
                del self.service.environment[name]

    def other_installation(self, **login: str) -> subprocess.CompletedProcess[str]:
        """Serve the first line from another home with the same ledger."""
        home, ledger = self.service.folder / "other-home", self.postgres.url("ledger")
        return command.ratchet("serve", self.service.loops["sim"], home=home, **{variables.LEDGER_URL: ledger}, **login)


def _basic(login: dict[str, str]) -> tuple[str, str] | None:
    user, _, password = login.get("PREFECT_API_AUTH_STRING", "").partition(":")
    return (user, password) if user else None


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """A Prefect server with a login and its database on Postgres; the ledger of the installation is on the same Postgres server."""
    folder = tmp_path_factory.mktemp("team")
    with postgres_server() as postgres:
        postgres.create("prefect")
        postgres.create("ledger")
        with prefect_server(folder, postgres.url("prefect", "asyncpg")) as url:
            service = Service(folder, LINES, **{variables.LEDGER_URL: postgres.url("ledger")})
            wait_for_approval(service)
            yield Team(postgres, url, service)


def test_server_with_a_login_carries_the_cycles_and_is_left_running(team: Team) -> None:
    wrong = command.ratchet("serve", *team.service.paths, home=team.service.home.root, PREFECT_API_URL=team.url)
    assert wrong.returncode == 2
    assert "PREFECT_API_AUTH_STRING" in wrong.stderr
    with team.serving(team.url, {}, PREFECT_API_AUTH_STRING=LOGIN) as service:
        run = service.suspended("sim")
        assert service.resume(run["id"], decision="reject", approver="ada")["status"] == "ACCEPT"
        assert outcome(service.ended(run["id"])) == ("Completed", "rejected")
        answer = service.answer("sim")
        assert (answer.actor, answer.approve, answer.via) == ("ada", False, "prefect")
        eventually(lambda: service.events("ratchet.cycle.ended", "sim"))
        other = team.other_installation(PREFECT_API_URL=team.url, PREFECT_API_AUTH_STRING=LOGIN)
        assert other.returncode == 2
        assert "line 'sim' is served by another installation that uses the same ledger" in other.stderr
        assert service.process is not None
        assert service.process.poll() is None
    assert httpx.get(f"{team.url}/health", trust_env=False).status_code == 200


@pytest.mark.soak
def test_answer_counts_although_postgres_is_killed_around_it(team: Team) -> None:
    with team.serving(team.url, {}, PREFECT_API_AUTH_STRING=LOGIN) as service:
        run = service.suspended("restart")
        team.postgres.kill()
        team.postgres.start()
        eventually(lambda: service.resume(run["id"], decision="reject", approver="bob").get("status") == "ACCEPT")
        team.postgres.kill()
        assert service.process is not None
        assert service.process.poll() is None, "the service waits for its database"
        team.postgres.start()
        eventually(lambda: service.cycle_state("restart") is State.REJECTED)
        assert service.answer("restart").actor == "bob"
        assert outcome(service.ended(run["id"])) == ("Completed", "rejected")


@pytest.mark.soak
def test_key_and_workspace_of_prefect_cloud(team: Team) -> None:
    with cloud_stub(team.url) as url:
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 401
        cloud = {"PREFECT_CLOUD_API_URL": url.partition("/accounts")[0]}
        wrong = command.ratchet(
            "serve", *team.service.paths, home=team.service.home.root, PREFECT_API_URL=url, PREFECT_API_KEY="wrong", **cloud
        )
        assert wrong.returncode == 2
        assert "PREFECT_API_KEY" in wrong.stderr
        with team.serving(url, {"Authorization": f"Bearer {KEY}"}, PREFECT_API_KEY=KEY, **cloud) as service:
            run = service.suspended("cloud")
            assert service.resume(run["id"], decision="reject", approver="eve")["status"] == "ACCEPT"
            assert outcome(service.ended(run["id"])) == ("Completed", "rejected")
            eventually(lambda: [name for name, _ in service.tasks(run["id"])][:3] == ["freeze", "probe", "plan"])
