"""Tests of the HTTP client for model servers: a machine that vanishes, and a name server that does not answer."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ratchet.router.models import Lost, ModelClient, Unreachable, _Resolver
from tests.needs import Need, lacks

SILENT = """
import socket, sys
listening = socket.create_server((sys.argv[1], 8000))
print("ready", flush=True)
accepted = listening.accept()[0]
accepted.recv(1 << 16)
print("asked", flush=True)
accepted.recv(1 << 16)
"""
"""A model server that reads a request and never answers."""


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def machine() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Yield the name of a network namespace, which stands for another machine, and the model server in it."""
    name, ours, theirs = f"ratchet-{os.getpid()}", f"ro{os.getpid()}", f"rt{os.getpid()}"
    run("ip", "netns", "add", name)
    try:
        run("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        run("ip", "address", "add", "198.18.77.1/30", "dev", ours)
        run("ip", "link", "set", ours, "up")
        run("ip", "-n", name, "address", "add", "198.18.77.2/30", "dev", theirs)
        run("ip", "-n", name, "link", "set", theirs, "up")
        command = ["ip", "netns", "exec", name, sys.executable, "-I", "-c", SILENT, "198.18.77.2"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            try:
                yield name, server
            finally:
                server.kill()
    finally:
        run("ip", "netns", "delete", name)


@pytest.mark.slow
def test_a_request_to_a_machine_that_vanishes_ends() -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        lacks(Need.ROOT, "the test makes a network namespace with the program ip")

    async def ask(name: str, server: subprocess.Popen[str]) -> None:
        client = ModelClient(1000, ssl.create_default_context())

        async def asked() -> None:
            async with client.ask("http://198.18.77.2:8000/v1/chat/completions", b"{}") as answer:
                await answer.read()

        request = asyncio.ensure_future(asked())
        assert server.stdout is not None
        assert await asyncio.to_thread(server.stdout.readline) == "asked\n"
        run("ip", "-n", name, "link", "set", f"rt{os.getpid()}", "down")
        try:
            with pytest.raises(Lost):
                await asyncio.wait_for(request, 120)
        finally:
            await client.close()

    with machine() as (name, server):
        asyncio.run(ask(name, server))


class Names:
    """A name server. It answers with `found`, an error, or not at all (None)."""

    def __init__(self, found: Any) -> None:
        self.found = found

    async def getaddrinfo(self, *_: Any, **__: Any) -> Any:
        if self.found is None:
            await asyncio.Event().wait()
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def found(address: str) -> list[Any]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 8000))]


AWAY = socket.gaierror(socket.EAI_AGAIN, "try again")


@pytest.mark.parametrize("failure", [None, AWAY])
def test_a_name_keeps_its_addresses_while_no_name_server_answers(failure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.router.models._RESOLVE_SECONDS", 0.05)

    async def resolved() -> None:
        names = Names(failure)
        resolver = _Resolver()
        resolver._loop = names  # type: ignore[assignment]
        with pytest.raises(socket.gaierror):
            await resolver.resolve("serve-a.shop.svc", 8000)
        for address in ("10.0.0.1", "10.0.0.2"):
            names.found = found(address)
            assert [one["host"] for one in await resolver.resolve("serve-a.shop.svc", 8000)] == [address]
        names.found = failure
        assert [one["host"] for one in await resolver.resolve("serve-a.shop.svc", 8000)] == ["10.0.0.2"]

    asyncio.run(resolved())


def test_a_name_without_a_ready_server_has_no_address() -> None:
    async def resolved() -> None:
        names = Names(found("10.0.0.1"))
        resolver = _Resolver()
        resolver._loop = names  # type: ignore[assignment]
        await resolver.resolve("serve-a.shop.svc", 8000)
        names.found = socket.gaierror(socket.EAI_NONAME, "no such name")
        with pytest.raises(socket.gaierror, match="no such name"):
            await resolver.resolve("serve-a.shop.svc", 8000)
        names.found = AWAY
        with pytest.raises(socket.gaierror, match="try again"):
            await resolver.resolve("serve-a.shop.svc", 8000)

    asyncio.run(resolved())


def test_a_name_that_is_unknown_cannot_be_reached() -> None:
    async def ask() -> None:
        client = ModelClient(1000, ssl.create_default_context())
        try:
            with pytest.raises(Unreachable):
                async with client.ask("http://name.invalid:8000", b"{}"):
                    pass
        finally:
            await client.close()

    asyncio.run(ask())
