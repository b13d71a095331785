"""Tests of the URL of a REST catalog, and of one that does not answer."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.materializer.lake.places import rest
from ratchet.materializer.lake.places.place import LakePlace
from ratchet.materializer.lake.places.rest import is_rest, rest_properties, shown_rest
from ratchet.materializer.lake.tables import Lake


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://catalog:8181", {"uri": "http://catalog:8181"}),
        ("https://catalog.example/api/catalog/", {"uri": "https://catalog.example/api/catalog"}),
        (
            "https://me:a%2Fsecret@polaris.example/api/catalog?warehouse=prod&scope=PRINCIPAL_ROLE%3AALL",
            {
                "uri": "https://polaris.example/api/catalog",
                "credential": "me:a/secret",
                "warehouse": "prod",
                "scope": "PRINCIPAL_ROLE:ALL",
            },
        ),
        ("https://:a.token@catalog.example/iceberg", {"uri": "https://catalog.example/iceberg", "token": "a.token"}),
    ],
)
def test_the_url_has_place_credentials_and_options(url: str, expected: dict[str, str]) -> None:
    assert is_rest(url)
    assert rest_properties(url) == expected


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://me:pass@catalog/?warehouse=a&hushed=b", "unknown option"),
        ("https://:hushed@/path", "names no host"),
        ("https://me:s/hushed@catalog.example/p", "no URL|names no host, or has characters"),
        ("https://me:se#hushed@catalog.example/p", "no URL|names no host, or has characters"),
        ("http://me:hushed@catalog.example/p", "http:// is for this machine"),
        ("https://me:hushed@catalog.example/p?oauth2-server-uri=http://elsewhere.example/token", "http:// is for this machine"),
    ],
)
def test_a_url_with_defects_is_refused_without_its_secret(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        rest_properties(url)
    assert "hushed" not in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1:8181", "lakekeeper", "catalog.data.svc", "catalog.data.svc.cluster.local:8181"])
def test_services_of_the_cluster_need_no_tls(host: str) -> None:
    assert rest_properties(f"http://me:secret@{host}/catalog")["credential"] == "me:secret"


@pytest.mark.slow
def test_a_redirect_is_refused_before_the_secret_is_sent_again(tmp_path: Path) -> None:
    asked: list[str] = []

    class Redirects(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(307)
            self.send_header("location", f"http://127.0.0.1:{self.server.server_address[1]}/elsewhere")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirects) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = LakePlace(tmp_path, "shop", f"http://me:a-secret-word@127.0.0.1:{server.server_address[1]}/", "s3://bucket/lakes")
        with pytest.raises(Retryable, match="redirects to another address") as refused:
            place.tables()
        server.shutdown()
    assert "a-secret-word" not in str(refused.value)
    assert "/elsewhere" not in asked


def test_the_shown_url_has_no_secret() -> None:
    assert shown_rest("https://me:a-secret@catalog.example/api/catalog?warehouse=prod") == "catalog.example/api/catalog"
    assert not is_rest("postgresql+psycopg://me@db/catalog")


@pytest.mark.slow
def test_a_catalog_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "READ", 0.5)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = LakePlace(tmp_path, "shop", f"http://127.0.0.1:{silent.getsockname()[1]}/", "s3://bucket/lakes")
        for ask in (place.tables, lambda: Lake(place).scan("traces")):
            with pytest.raises(Retryable, match="timed out"):
                ask()
