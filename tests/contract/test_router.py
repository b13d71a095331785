"""Contract tests for every router, and tests of the local router over real HTTP with two backends and a receiver."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.fakes import FakeRouter, FakeWorld
from ratchet.contracts.ids import canonical, person_id
from ratchet.contracts.schema import SCHEMA_VERSION
from ratchet.contracts.serving import Backend
from ratchet.extend.testkit import RouterSuite
from ratchet.local.router import LocalRouter
from ratchet.router.counts.outcomes import window
from ratchet.router.counts.report import figures
from ratchet.router.state import Document
from ratchet.runtime.extensions import ExtensionKind, load
from tests import serving_site
from tests.cluster.rig.site import free_ports
from tests.serving_site import Site, route, started
from tests.waiting import until

pytestmark = pytest.mark.slow  # real router processes


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalRouter]:
    with started(tmp_path) as router:
        yield router


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRouter]:
    """A router for all tests that look at replies only. It has no receiver, so that no trace of one test reaches another."""
    with started(tmp_path_factory.mktemp("shared")) as router:
        yield router


@pytest.fixture(scope="module")
def traced_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalRouter, Site]]:
    """A router and its receiver for all tests that wait for the traces of all their requests."""
    with serving_site.traced_site(tmp_path_factory.mktemp("traced")) as both:
        yield both


@pytest.fixture
def traced(traced_site: tuple[LocalRouter, Site]) -> tuple[LocalRouter, Site]:
    """The shared router and site, without the traces of the tests before."""
    traced_site[1].spans.clear()
    return traced_site


@pytest.fixture
def gateway(example: Path, tmp_path: Path) -> Any:
    options = {"file": "gateway.json", "url": "http://gateway"}
    router = load(ExtensionKind.ROUTER, "gateway-file").create(
        tmp_path / "serving", tmp_path / "receiver.json", tmp_path / "token", 0, False, options=options, where=""
    )
    yield router
    router.stop()


@pytest.fixture(params=["fake", "local", "gateway"])
def router(request: pytest.FixtureRequest) -> Any:
    return FakeRouter(FakeWorld()) if request.param == "fake" else request.getfixturevalue(request.param)


def placed(tag: str, weight: float) -> Backend:
    return Backend(tag=tag, url="http://127.0.0.1:1", model=tag, weight=weight)


class TestRouters(RouterSuite):
    """The suite, with the fixture above."""


def test_a_router_attributes_answers(router: Any) -> None:
    assert router.attribution


def test_damaged_route_counts_as_missing_and_is_set_again(router: Any, tmp_path: Path) -> None:
    one = route(placed("a", 100))
    router.set(one)
    for path in (tmp_path / "serving").rglob("*.json"):
        if path.name in ("route.json", "gateway.json"):
            path.write_text('{"line": "line", "back')
            assert router.read("line") is None
    router.set(one)
    assert router.read("line") == one


def test_counts_of_forwarded_requests_are_known_or_an_error_to_retry(router: Any) -> None:
    router.set(route(placed("a", 100)))
    now = datetime.now(UTC)
    if hasattr(router, "_sent"):
        with pytest.raises(Retryable, match="start the gateway"):
            router.forwarded("line", now - timedelta(hours=1), now)
    else:
        until(lambda: known(router))
        assert dict(router.forwarded("line", now - timedelta(hours=1), now)) == {}


def known(router: Any) -> bool:
    """Whether the router has counts. The process writes its file when it starts."""
    try:
        router.forwarded("line", datetime.now(UTC), datetime.now(UTC))
    except Retryable:
        return False
    return True


def test_gateway_counts_the_requests_that_it_sends(gateway: Any, tmp_path: Path) -> None:
    gateway.set(route(placed("a", 100)))
    now = datetime.now(UTC)
    lines = [{"time": (now + timedelta(seconds=at)).isoformat(), "version": tag} for at, tag in ((-1, "a"), (0, "a"), (1, "b"), (2, "b"))]
    (tmp_path / "serving" / "sent.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert gateway.forwarded("line", now, now + timedelta(seconds=2)) == {"a": 1, "b": 1}


def ask(url: str, session: str | None = None, **more: Any) -> httpx.Response:
    headers = {"x-session-id": session} if session else {}
    body = {"model": "helper", "messages": [{"role": "user", "content": "hi"}], **more.pop("body", {})}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers | more.pop("headers", {}), timeout=20, trust_env=False)


@pytest.mark.slow
def test_sessions_keep_their_version_and_every_answer_is_attributed(local: LocalRouter, site: Site) -> None:
    old, new = site.backend("old", 70), site.backend("new", 30)
    local.set(route(old, new))
    url = local.url()
    with httpx.Client(base_url=url, trust_env=False) as client:
        met: dict[str, str] = {}
        for turn in range(2):
            for i in range(80):
                body = {"model": "helper", "messages": [{"role": "user", "content": "hi"}]}
                reply = client.post("/v1/chat/completions", json=body, headers={"x-session-id": f"s{i}"})
                version = reply.headers["x-ratchet-version"]
                assert reply.json()["choices"][0]["message"]["content"] == f"from {version}"
                assert reply.json()["model"] == "helper"
                assert met.setdefault(f"s{i}", version) == version, turn
        before = {session for session, version in met.items() if version == "new"}
        assert 8 < len(before) < 45
        local.set(route(old.model_copy(update={"weight": 40}), new.model_copy(update={"weight": 60})))
        for session in before:
            assert ask(url, session).headers["x-ratchet-version"] == "new"


def test_a_user_keeps_a_version_without_a_session_and_if_users_are_the_unit(local: LocalRouter, site: Site) -> None:
    """Fourteen requests of one user on one version by chance would have a probability of 0.0001."""
    old, new = site.backend("old", 50), site.backend("new", 50)
    for unit, sessions in (("session", [None] * 14), ("user", [f"s{n}" for n in range(14)])):
        local.set(route(old, new).model_copy(update={"unit": unit, "salt": "grain"}))
        url = local.url()
        users = {
            name: {ask(url, session, headers={"x-user-id": name}).headers["x-ratchet-version"] for session in sessions}
            for name in ("ann", "bob", "cy", "dan", "eve", "fay")
        }
        assert all(len(versions) == 1 for versions in users.values()), (unit, users)
        assert len(set.union(*users.values())) == 2, "both versions get users"


def test_a_user_is_one_person_whatever_the_client_does_with_letters(local: LocalRouter, site: Site, tmp_path: Path) -> None:
    (tmp_path / "receiver.json").write_text(json.dumps({"port": site.open(site.receive)}))
    local.set(route(site.backend("old", 100)))
    for sent in ("José".encode(), "José".encode("latin-1"), "Jose\u0301".encode()):
        ask(local.url(), headers={"x-user-id": sent, "x-ratchet-region": "Köln".encode()})
    ask(local.url(), body={"user": " José"})
    long = "n" * 300
    ask(local.url(), headers={"x-user-id": long})
    until(lambda: len(site.spans) == 5)
    users = [found["user.id"] for found in site.attributes()]
    assert users == ["José"] * 4 + [person_id(long)]
    assert [found.get("metadata.region") for found in site.attributes()] == ["Köln"] * 3 + [None] * 2


def test_traces_contain_metadata_and_content_only_with_consent(local: LocalRouter, site: Site, tmp_path: Path) -> None:
    (tmp_path / "receiver.json").write_text(json.dumps({"port": site.open(site.receive)}))
    local.set(route(site.backend("old", 100)))
    told = {"x-user-id": "ada", "x-ratchet-consent": "true", "x-ratchet-region": "eu", "x-ratchet-slice": "pods"}
    told["x-ratchet-confidentiality"] = "internal"
    reply = ask(local.url(), "s1", headers=told)
    ask(local.url(), body={"user": "bob", "metadata": {"consent": False, "session": "s2"}})
    until(lambda: len(site.spans) == 2)
    first, second = site.attributes()
    assert site.tokens == {"Bearer secret"}
    assert reply.headers["x-ratchet-trace"] == f"{site.spans[0].trace_id.hex()}:{site.spans[0].span_id.hex()}"
    expected = {
        "ratchet.model_version": "old",
        "user.id": "ada",
        "gen_ai.conversation.id": "s1",
        "metadata.region": "eu",
        "metadata.confidentiality": "internal",
        "metadata.slice": "pods",
    }
    assert expected.items() <= first.items()
    assert first["metadata.consent"] is True
    assert (first["gen_ai.usage.input_tokens"], first["gen_ai.usage.output_tokens"]) == (3, 2)
    assert json.loads(first["gen_ai.output.messages"])[0]["parts"][0]["content"] == "from old"
    assert (second["user.id"], second["gen_ai.conversation.id"], second["metadata.consent"]) == ("bob", "s2", False)
    assert not {"gen_ai.input.messages", "gen_ai.output.messages"} & second.keys()


def test_traces_are_sent_once_the_receiver_is_available(local: LocalRouter, site: Site, tmp_path: Path) -> None:
    (tmp_path / "receiver.json").write_text('{"port": 1}')
    local.set(route(site.backend("old", 100)))
    for i in range(5):
        assert ask(local.url(), f"s{i}").status_code == 200
    time.sleep(0.6)
    (tmp_path / "receiver.json").write_text(json.dumps({"port": site.open(site.receive)}))
    until(lambda: len(site.spans) >= 5)
    assert Counter(span["gen_ai.conversation.id"] for span in site.attributes()) == Counter(f"s{i}" for i in range(5))


def test_unavailable_backend_is_an_error_in_the_reply_and_the_trace(local: LocalRouter, site: Site, tmp_path: Path) -> None:
    (tmp_path / "receiver.json").write_text(json.dumps({"port": site.open(site.receive)}))
    local.set(route(placed("gone", 100)))
    reply = ask(local.url(), "s1")
    assert (reply.status_code, reply.headers["x-ratchet-version"], reply.headers["retry-after"]) == (503, "gone", "5")
    until(lambda: len(site.spans) == 1)
    assert "Cannot connect" in site.spans[0].status.message
    assert site.attributes()[0]["ratchet.model_version"] == "gone"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("how", ["gone", "dies"])
def test_the_champion_answers_for_a_candidate_whose_server_fails(
    local: LocalRouter, site: Site, tmp_path: Path, how: str, streamed: bool
) -> None:
    """The failed try is evidence against the candidate. The champion's answer is a trace, and evidence of no version."""
    begin = datetime.now(UTC).replace(microsecond=0)
    (tmp_path / "receiver.json").write_text(json.dumps({"port": site.open(site.receive)}))

    def reply(name: str, body: dict[str, Any]) -> tuple[int, bytes | Iterable[bytes]]:
        if name == "candidate":
            raise ConnectionError
        chunk = {"id": "c", "choices": [{"index": 0, "delta": {"content": "from champion"}, "finish_reason": "stop"}]}
        return (200, [b"data: " + json.dumps(chunk).encode() + b"\n\n", b"data: [DONE]\n\n"]) if streamed else site.answer(name, body)

    site.reply = reply
    candidate = placed("candidate", 100) if how == "gone" else site.backend("candidate", 100)
    local.set(route(site.backend("champion", 0), candidate))
    got = ask(local.url(), "s1", body={"stream": streamed})
    assert got.status_code == 200
    assert "from champion" in got.text
    assert got.headers["x-ratchet-version"] == "champion"
    until(lambda: len(site.spans) == 2)
    failed, answered = site.attributes()
    assert (failed["ratchet.model_version"], site.spans[0].status.code) == ("candidate", 2)
    assert "ratchet.model_version" not in answered
    assert answered["gen_ai.conversation.id"] == failed["gen_ai.conversation.id"] == "s1"
    assert got.headers["x-ratchet-trace"] == f"{site.spans[1].trace_id.hex()}:{site.spans[1].span_id.hex()}"

    def settled() -> bool:
        with contextlib.suppress(Retryable):  # the router writes its counts once a second
            counts = dict(local.forwarded("line", begin, begin + timedelta(minutes=5)))
            idle = not sum(local.in_flight("line").values())
            return idle and counts == {"candidate": 1} and watched() == {"candidate": (1, 1), "champion": (1, 0)}
        return False

    def watched() -> dict[str, tuple[int, int]]:
        """Requests and errors by version, as a person sees them who watches the line."""
        report = next(tmp_path.rglob(Document.REPORT.value)).read_bytes()
        found, _turned_away = window(figures(report)["outcomes"], time.time(), minutes=5)
        return {tag: (one["requests"], one["errors"]) for tag, one in found.items()}

    until(settled)


def test_a_candidate_never_answers_for_the_champion(local: LocalRouter, site: Site) -> None:
    local.set(route(placed("champion", 100), site.backend("candidate", 0)))
    assert ask(local.url(), "s1").status_code == 503
    assert site.asked == []


@pytest.mark.parametrize("streamed", [False, True])
def test_a_request_waits_a_moment_for_a_champion_that_is_being_replaced(local: LocalRouter, site: Site, streamed: bool) -> None:
    chunk = {"id": "c", "choices": [{"index": 0, "delta": {"content": "from champion"}, "finish_reason": "stop"}]}
    whole = site.answer("champion", {"model": "m"})
    site.reply = lambda *_: (200, [b"data: " + json.dumps(chunk).encode() + b"\n\n", b"data: [DONE]\n\n"]) if streamed else whole
    [port] = free_ports(1)
    local.set(route(Backend(tag="champion", url=f"http://127.0.0.1:{port}", model="champion", weight=100)))

    def reply(_request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes | Iterable[bytes]]:
        return site.reply("champion", json.loads(body))

    starts = threading.Timer(1.0, site.open, (reply, port))
    starts.start()
    got = ask(local.url(), "s1", body={"stream": streamed})
    starts.join()
    assert got.status_code == 200
    assert "from champion" in got.text


ODD: dict[str, tuple[int, bytes]] = {
    "no usage figures": (200, b'{"id": 1, "choices": [{"message": {"content": "x"}}], "usage": {}}'),
    "usage of text": (200, b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": "many", "completion_tokens": null}}'),
    "message of text": (200, b'{"choices": [{"message": "x"}]}'),
    "lone surrogate": (200, b'{"choices": [{"message": {"content": "\\ud800"}}]}'),
    "no choices": (200, b"{}"),
}


@pytest.mark.parametrize("how", ODD)
def test_unusual_reply_reaches_the_user_and_the_trace(traced: tuple[LocalRouter, Site], how: str) -> None:
    local, site = traced
    site.reply = lambda _name, _body: ODD[how]
    local.set(route(site.backend("old", 100)))
    reply = ask(local.url(), "s1", headers={"x-ratchet-consent": "true"})
    assert reply.status_code == 200
    assert reply.headers["x-ratchet-version"] == "old"
    until(lambda: len(site.spans) == 1)


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"not json", 400), (b"[]", 400), (b'{"messages": 3}', 400), (b'{"model": "other", "messages": []}', 404),
        (b'{"model": "helper", "messages": [], "stream": "yes"}', 400), (b'{"model": "helper", "messages": [], "stream_options": {}}', 400),
        (b'{"model": "helper", "messages": [], "stream": true, "stream_options": 3}', 400),
        (b'{"model": "helper", "messages": ["hi", 3]}', 400),
        (b'{"model": "helper", "messages": [{"role": "user", "content": "\\ud800"}], "temperature": "hot"}', 200),
        (b"x" * 9_000_000, 413), (b"[" * 200_000, 400), (b'{"model": "helper", "messages": [], "x": ' + b"[" * 50 + b"]" * 50 + b"}", 400),
        (b'{"model": "helper", "messages": [], "temperature": NaN}', 400), (b'{"model": "helper", "messages": [], "top_p": 1e999}', 400),
        (b'{"model": "helper", "messages": [], "n": 9}', 400), (b'{"model": "helper", "messages": [], "max_tokens": 0}', 400),
        (b'{"model": "helper", "messages": [], "n": true}', 400), (b'{"model": "helper", "messages": [], "n": null}', 200),
    ],
)  # fmt: skip
def test_unusual_requests_get_a_json_reply(shared: LocalRouter, site: Site, content: bytes, status: int) -> None:
    shared.set(route(site.backend("old", 100)))
    headers = {"x-ratchet-consent": "true", "content-type": "application/json"}
    reply = httpx.post(f"{shared.url()}/v1/chat/completions", content=content, headers=headers, timeout=20, trust_env=False)
    assert reply.status_code == status
    assert isinstance(reply.json(), dict)


def test_callers_by_a_former_name_get_answers_until_it_is_ended(shared: LocalRouter, site: Site) -> None:
    present = route(site.backend("old", 100))
    shared.set(present.model_copy(update={"former_names": ("first", "second")}))
    for name in ("helper", "first", "second"):
        reply = ask(shared.url(), body={"model": name})
        assert (reply.status_code, reply.json()["model"]) == (200, name), "clients compare the name of the answer with theirs"
    listed = httpx.get(f"{shared.url()}/v1/models", trust_env=False).json()["data"]
    assert [one["id"] for one in listed] == ["helper", "first", "second"]
    shared.set(present)
    refused = ask(shared.url(), body={"model": "first"})
    assert refused.status_code == 404
    assert "use 'helper'" in refused.text


def test_body_without_a_length_is_rejected_at_the_limit(shared: LocalRouter, site: Site) -> None:
    shared.set(route(site.backend("old", 100)))
    pieces = (b" " * 1_000_000 for _ in range(20))
    with contextlib.suppress(httpx.WriteError):  # the router may have closed the connection already
        assert httpx.post(f"{shared.url()}/v1/chat/completions", content=pieces, timeout=20, trust_env=False).status_code == 413
    assert ask(shared.url()).status_code == 200


@pytest.mark.parametrize(("status", "blamed"), [(400, False), (422, False), (404, True), (429, True), (500, True)])
def test_only_errors_that_a_version_can_cause_are_counted_for_it(traced: tuple[LocalRouter, Site], status: int, blamed: bool) -> None:
    local, site = traced
    site.reply = lambda _name, _body: (status, b'{"error": {"message": "no"}}')
    local.set(route(site.backend("old", 100)))
    assert ask(local.url()).status_code == status
    until(lambda: len(site.spans) == 1)
    assert (site.spans[0].status.code == 2, "ratchet.refused" in site.attributes()[0]) == (blamed, not blamed)


def test_the_work_of_an_abandoned_request_ends_and_no_version_is_blamed(traced: tuple[LocalRouter, Site]) -> None:
    local, site = traced
    told, closed = threading.Event(), threading.Event()

    def slow(request: BaseHTTPRequestHandler, _body: bytes) -> tuple[int, bytes]:
        told.set()
        request.connection.settimeout(60)
        if request.connection.recv(1) == b"":  # the router has closed its connection
            closed.set()
        return 200, b"{}"

    backend = Backend(tag="old", url=f"http://127.0.0.1:{site.open(slow)}", model="m", weight=100)
    local.set(route(backend))
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{local.url()}/v1/chat/completions",
            json={"model": "helper", "messages": [{"role": "user", "content": "q"}]},
            timeout=httpx.Timeout(30, read=5),
            trust_env=False,
        )
    assert told.wait(30)
    assert closed.wait(30), "the model server must learn that nobody waits for the answer"
    until(lambda: len(site.spans) == 1)
    assert (site.spans[0].status.code == 2, "ratchet.refused" in site.attributes()[0]) == (False, True)


@pytest.mark.parametrize("assumed", [False, True])
def test_missing_consent_is_treated_as_the_loop_file_says(site: Site, tmp_path: Path, assumed: bool) -> None:
    (tmp_path / "token").write_text("secret")
    (tmp_path / "receiver.json").write_text(json.dumps({"port": site.open(site.receive)}))
    with started(tmp_path, assume_consent=assumed) as router:
        router.set(route(site.backend("old", 100)))
        for session, headers in (("silent", {}), ("no", {"x-ratchet-consent": "false"})):
            ask(router.url(), session, headers={"x-ratchet-slice": "a{b}", **headers})
        until(lambda: len(site.spans) == 2)
    silent, no = sorted(site.attributes(), key=lambda values: -len(values["gen_ai.conversation.id"]))
    assert "metadata.consent" not in silent
    assert no["metadata.consent"] is False
    assert ("gen_ai.input.messages" in silent, "gen_ai.input.messages" in no) == (assumed, False)
    assert "metadata.slice" not in silent


def test_every_sent_request_is_counted_for_its_version(local: LocalRouter, site: Site) -> None:
    begin = datetime.now(UTC).replace(microsecond=0)
    site.reply = lambda _name, body: (400, b'{"error": "no"}') if body["messages"][0]["content"] == "bad" else site.answer(_name, body)
    local.set(route(placed("gone", 50), site.backend("old", 50)))

    def version(i: int) -> str:
        return ask(local.url(), f"s{i}", body={"messages": [{"role": "user", "content": "bad"}]}).headers["x-ratchet-version"]

    with ThreadPoolExecutor(30) as pool:  # a request to the version that is gone waits a moment
        versions = Counter(pool.map(version, range(30)))
    assert set(versions) == {"gone", "old"}
    assert ask(local.url(), body={"stream": 1}).status_code == 400  # the router itself rejects it
    end = datetime.now(UTC) + timedelta(seconds=2)
    until(lambda: dict(local.forwarded("line", begin, end)) == dict(versions))
    local.stop()
    local.url()
    assert dict(local.forwarded("line", begin, end)) == dict(versions), "a restart keeps the counts"


def test_router_answers_by_its_last_valid_route(local: LocalRouter, site: Site, tmp_path: Path) -> None:
    local.set(route(site.backend("old", 100)))
    assert ask(local.url()).status_code == 200
    (tmp_path / "serving" / "router" / "route.json").write_text("{")
    assert ask(local.url()).headers["x-ratchet-version"] == "old"
    assert local.read("line") is None


def test_route_without_positive_weight_is_rejected(local: LocalRouter) -> None:
    with pytest.raises(Permanent, match="weight"):
        local.set(route(placed("a", 0)))


def test_killed_router_restarts_at_its_address_with_its_route(local: LocalRouter, site: Site) -> None:
    local.set(route(site.backend("old", 100)))
    url = local.url()
    process = psutil.Process(local.process.pid())
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    assert local.read("line") is None
    assert local.url() == url
    assert ask(url, "s1").headers["x-ratchet-version"] == "old"


def test_router_process_with_another_schema_version_is_replaced(site: Site, local: LocalRouter) -> None:
    local.set(route(site.backend("a", 100)))
    url, before = local.url(), local.process.pid()
    ready = local.process.process.folder / "ready.json"
    ready.write_bytes(canonical(json.loads(ready.read_bytes()) | {"schema_version": SCHEMA_VERSION - 1}))
    assert local.read("line") is None, "the reconciler then sets the route again, and so replaces the process"
    local.set(route(site.backend("b", 100)))
    assert local.read("line") is not None
    assert local.process.pid() != before
    assert local.url() == url
    assert ask(url).headers["x-ratchet-version"] == "b"


def test_callers_do_not_see_versions_and_weights_without_a_setting(site: Site, tmp_path: Path) -> None:
    with started(tmp_path, name_versions=False) as router:
        router.set(route(site.backend("candidate-7", 100)))
        replies = [ask(router.url()), ask(router.url(), body={"stream": True}), httpx.get(f"{router.url()}/health", trust_env=False)]
        router.set(route(placed("candidate-7", 100)))
        replies.append(ask(router.url()))
    assert [reply.status_code for reply in replies] == [200, 502, 200, 503]
    assert not [reply for reply in replies if "candidate-7" in f"{reply.headers} {reply.text}".replace("from candidate-7", "")]
    assert replies[2].json() == {"status": "ok", "dropped_traces": 0, "dropped": {}}


def test_requests_in_flight_are_known_or_an_error_to_retry(router: Any) -> None:
    router.set(route(placed("a", 100)))
    if hasattr(router, "_sent"):
        with pytest.raises(Retryable, match="not known"):
            router.in_flight("line")
    else:
        assert until(lambda: reported(router)) == [{}]


def test_requests_in_flight_belong_to_the_route_in_force(local: LocalRouter, site: Site) -> None:
    hold, asked = threading.Event(), threading.Event()

    def slow(_name: str, _body: dict[str, Any]) -> tuple[int, bytes]:
        asked.set()
        hold.wait(30)
        return 200, b"{}"

    site.reply = slow
    local.set(route(site.backend("slow", 100)))
    caller = threading.Thread(target=ask, args=(local.url(),))
    caller.start()
    assert asked.wait(30)
    local.set(route(placed("b", 100)))
    assert until(lambda: reported(local)) == [{"slow": 1}]
    hold.set()
    caller.join()
    until(lambda: reported(local) == [{}])
    local.stop()
    assert local.in_flight("line") == {}, "a router without a process has no requests"


def reported(router: LocalRouter) -> list[dict[str, int]]:
    """The requests in flight, if the router process has reported them."""
    try:
        return [dict(router.in_flight("line"))]
    except Retryable:
        return []


@pytest.mark.slow
def test_a_pinned_request_reaches_its_version_and_is_no_evidence(tmp_path: Path) -> None:
    site = Site()
    (tmp_path / "receiver.json").write_text(json.dumps({"port": site.open(site.receive)}))
    try:
        with started(tmp_path, pins=True) as router:
            router.set(route(site.backend("old", 100), site.backend("new", 0)))
            url = router.url()
            for version, pin in (("new", "candidate"), ("old", "champion")):
                assert ask(url, "s", headers={"x-ratchet-pin": pin}).headers["x-ratchet-version"] == version
            assert ask(url, "s", headers={"x-ratchet-pin": "v-7"}).status_code == 400
            assert ask(url, "s").headers["x-ratchet-version"] == "old"
            until(lambda: len(site.spans) == 3)
            versions = [{one.key: one.value.string_value for one in span.attributes}.get("ratchet.model_version") for span in site.spans]
            assert sorted(map(str, versions)) == ["None", "None", "old"], "a pinned answer is evidence of no version"
            until(lambda: sent(router) == 1)
            router.set(route(site.backend("old", 100)))
            until(lambda: ask(url, "s", headers={"x-ratchet-pin": "candidate"}).status_code == 404)
    finally:
        site.close()


def sent(router: LocalRouter) -> int | None:
    """The number of requests in the last hour; None before the router has written its first counts."""
    with contextlib.suppress(Retryable):
        return sum(router.forwarded("line", datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC)).values())
    return None


@pytest.mark.slow
def test_no_other_version_answers_for_a_pinned_one_that_fails(tmp_path: Path, site: Site) -> None:
    with started(tmp_path, pins=True) as router:
        router.set(route(site.backend("old", 100), placed("new", 0)))
        assert ask(router.url(), "s", headers={"x-ratchet-pin": "candidate"}).status_code >= 500


@pytest.mark.slow
def test_a_pin_is_refused_unless_the_line_allows_it(local: LocalRouter, site: Site) -> None:
    local.set(route(site.backend("old", 50), site.backend("new", 50)))
    reply = ask(local.url(), "s", headers={"x-ratchet-pin": "candidate"})
    assert (reply.status_code, "serving.router_options.pins" in reply.text) == (403, True)
