"""A real OpenAI-compatible server on the loopback interface that plays a judge, and a simulated model that can be talked into a score."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Reply = str | bytes | tuple[int, dict[str, str]]
"""Text of a chat completion, or the body of a reply with status 200, or (HTTP status, headers)."""
Model = Callable[[dict[str, Any]], Reply]
"""Answers the body of a request."""


@dataclass
class Stub:
    """The server's settings and counts. `slots` requests are processed at the same time, each for `seconds`."""

    model: Model
    slots: int = 1_000_000
    seconds: float = 0.0
    queue: int = 1_000_000
    """Further requests that wait. Beyond them, the server answers 429."""
    retry_after: str | None = None
    key: str | None = None
    """The API key that it asks for."""
    port: int = 0
    requests: int = 0
    refused: int = 0
    most: int = 0
    """Largest number of requests at the same time."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keep: bool = True
    """Whether `bodies` contains the requests."""
    _running: int = 0

    @property
    def url(self) -> str:
        """Base URL for clients."""
        return f"http://127.0.0.1:{self.port}/v1"


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    """Run the server in a thread."""
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def run() -> None:
        slots = asyncio.Semaphore(stub.slots)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await _one(stub, slots, reader, writer)
            writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        stub.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await server.serve_forever()

    def main() -> None:
        asyncio.set_event_loop(loop)
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    task = loop.create_task(run())
    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield stub
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)


async def _one(stub: Stub, slots: asyncio.Semaphore, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = re.search(r"content-length: (\d+)", head)
    body = json.loads(await reader.readexactly(int(length.group(1)))) if length else {}
    if stub.key is not None and f"authorization: bearer {stub.key}" not in head:
        return await _send(writer, 401, {}, b"{}")
    stub.requests += 1
    if stub.keep:
        stub.bodies.append(body)
    if stub._running >= stub.slots + stub.queue:
        stub.refused += 1
        return await _send(writer, 429, {"retry-after": stub.retry_after} if stub.retry_after else {}, b"{}")
    stub._running += 1
    stub.most = max(stub.most, stub._running)
    try:
        async with slots:
            if stub.seconds:
                await asyncio.sleep(stub.seconds)
    finally:
        stub._running -= 1
    reply = stub.model(body)
    if isinstance(reply, tuple):
        stub.refused += reply[0] == 429
        return await _send(writer, reply[0], reply[1], b"{}")
    if isinstance(reply, bytes):
        return await _send(writer, 200, {}, reply)
    choice = {"message": {"role": "assistant", "content": reply}, "finish_reason": "stop"}
    content = {"choices": [choice], "usage": usage_of(body, reply)}
    return await _send(writer, 200, {}, json.dumps(content).encode())


def usage_of(body: dict[str, Any], reply: str) -> dict[str, int]:
    """The tokens that the server reports for a request and its reply."""
    return {"prompt_tokens": sum(len(m["content"]) for m in body["messages"]) // 4, "completion_tokens": len(reply) // 4 + 1}


async def _send(writer: asyncio.StreamWriter, status: int, headers: dict[str, str], content: bytes) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(
        f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n{lines}\r\n".encode() + content
    )
    await writer.drain()


def grade(score: int, addressed: bool = False, applies: bool = True) -> str:
    """A valid reply about one answer."""
    return json.dumps({"reason": "because", "addressed_to_grader": addressed, "applies": applies, "score": score})


def preference(better: str) -> str:
    """A valid reply about two answers."""
    return json.dumps({"reason": "because", "addressed_to_grader": False, "better": better})


def parts(body: dict[str, Any]) -> dict[str, str]:
    """The texts between the marks of a request, by title."""
    content = body["messages"][1]["content"]
    mark = content.split(" ", 1)[0]
    found = {}
    for part in content.split(f"{mark} ")[1:]:
        title, _, text = part.partition("\n")
        found[title] = text.removesuffix("\n")
    return found


@dataclass(frozen=True)
class Arithmetic:
    """A simulated judge of answers like `A: 5` to questions like `What is 2 + 3?`. Everything else is wrong.

    It takes instructions that it sees outside the marks, or as a special token, for its own. Those inside the marks it obeys with
    probability `talked_into`, and recognises with probability `notices`. It is wrong about the answer to a sum with probability `errs`.
    """

    talked_into: float = 0.0
    notices: float = 0.0
    errs: float = 0.0
    obeys: str = ""
    """Regular expression of the instructions that it obeys always."""

    def __call__(self, body: dict[str, Any]) -> Reply:
        """Grade the answer of a request."""
        asked = parts(body)
        conversation, answer = asked["conversation"], asked.get("answer", "")
        if "<|im_start|>" in answer or not body["messages"][1]["content"].startswith("#"):
            return grade(5)
        if _PLEA.search(answer):
            draw = _draw("plea", answer)
            if draw < self.talked_into or (self.obeys and re.search(self.obeys, answer)):
                return grade(5)
            if draw > 1 - self.notices:
                return grade(1, addressed=True)
        right = is_right(conversation, answer)
        if _SUM.search(conversation) and _draw("error", conversation, answer) < self.errs:
            right = not right
        return grade(5 if right else 1)


_SUM = re.compile(r"What is (\d+) \+ (\d+)\?")
_PLEA = re.compile(r"(?i)\b(score|grade|5|five|rate|rating|points|punkt\w*|note|puntuaci\w+|evaluat\w+|grader|judge)\b|分")


def is_right(conversation: str, answer: str) -> bool:
    """Whether the last result in the answer is that of the sum in the conversation."""
    asked, given = _SUM.search(conversation), re.findall(r"A: (\d+)", answer)
    return bool(asked and given) and int(asked.group(1)) + int(asked.group(2)) == int(given[0])


def _draw(*texts: str) -> float:
    return int.from_bytes(hashlib.sha256("\x1f".join(texts).encode()).digest()[:6], "big") / (1 << 48)
