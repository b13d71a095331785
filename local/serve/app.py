"""The model server's application: an OpenAI chat API over one small model, with micro-batching.

It is used instead of `transformers serve` for two reasons, measured in benchmarks/serving.py. It answers twice as many requests per
second as that server's plain mode. It also supports temperature and seed per request, which that server's continuous batching does
not; the probe and the gate need both. For a fleet of GPUs, use vLLM.

It listens on loopback only. The endpoints that load and unload adapters (`adapters.py`) exist only where the service wants them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ratchet.contracts.wording import problems
from ratchet.local.serve.adapters import Adapters, add_endpoints
from ratchet.local.serve.completions import Completion, error_body, event
from ratchet.local.serve.generate import Generated, GenerationRow, Listener, Model, Piece
from ratchet.runtime.serving.announcement import BEAT_SECONDS, beat
from ratchet.runtime.serving.asgi import CallerGone, TooLarge, read_body, while_connected

_BATCH = 64
_GATHER_SECONDS = 0.003
_MAX_ROWS = 4096
_BUSY = "too many requests are queued; try again later"
_BYTES_PER_TOKEN = 16
"""Bytes of a request per token of the context. Text has about four bytes per token; the rest is for JSON and for other languages. A larger
request cannot fit into the context, and its tokenisation would take seconds."""
_BODY_BYTES = 64 << 10, 8 << 20
"""Least and greatest limit for the size of a request, in bytes."""


class StreamOptions(BaseModel):
    """Options of a streamed answer."""

    include_usage: bool = False
    """Whether the last chunk has the numbers of tokens."""


class Chat(BaseModel):
    """The request fields that are used. Other fields of the API are accepted and ignored."""

    model_config = ConfigDict(extra="ignore")

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    temperature: float = Field(default=1.0, ge=0, le=5)
    max_tokens: int | None = Field(default=None, gt=0)
    max_completion_tokens: int | None = Field(default=None, gt=0)
    seed: int | None = None
    n: int = Field(default=1, ge=1, le=64)
    logprobs: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None


class Batcher:
    """Collects rows for a few milliseconds and generates them as one batch, in a thread, with the adapters that are loaded then."""

    def __init__(self, model: Model, adapters: Adapters) -> None:
        self._model = model
        self._adapters = adapters
        self._queue: asyncio.Queue[tuple[GenerationRow, asyncio.Future[Generated]]] = asyncio.Queue(_MAX_ROWS)

    async def submit(self, row: GenerationRow) -> Generated:
        """Queue a row and return its answer.

        Raises asyncio.QueueFull if too many rows wait, and RuntimeError if the generation of its batch fails.
        """
        future: asyncio.Future[Generated] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((row, future))
        return await future

    async def run(self) -> None:
        """Generate the queued rows batch by batch until cancelled."""
        while True:
            batch = [await self._queue.get()]
            await asyncio.sleep(_GATHER_SECONDS)
            while len(batch) < _BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            async with self._adapters.lock:
                wanted = [(row, future) for row, future in batch if not future.cancelled() and self._is_loaded(row, future)]
                if wanted:
                    await self._answer(wanted)

    def _is_loaded(self, row: GenerationRow, future: asyncio.Future[Generated]) -> bool:
        """Return whether the adapter of a row is loaded. If it was unloaded while the row waited, the request fails."""
        if not row.adapter or row.adapter in self._adapters.roots:
            return True
        future.set_exception(RuntimeError(f"the adapter {row.adapter!r} was unloaded"))
        return False

    async def _answer(self, batch: list[tuple[GenerationRow, asyncio.Future[Generated]]]) -> None:
        try:
            stopped = [future.cancelled for _, future in batch]
            results = await asyncio.to_thread(self._model.generate, [row for row, _ in batch], stopped)
        except Exception as error:  # a bad batch must not stop the server; each of its requests fails
            for _, future in batch:
                if not future.done():
                    future.set_exception(RuntimeError(str(error)))
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)


def build_app(model: Model, names: Sequence[str], base: Path | None = None) -> FastAPI:
    """Return the ASGI app that serves a loaded model under each of the `names`. An answer has the name that was asked for.

    With `base`, the folder of the model, the app can load adapters over it, each of which answers to its own name.
    """
    adapters = Adapters(model)
    batcher = Batcher(model, adapters)
    tokeniser = ThreadPoolExecutor(1, "tokeniser")
    most = min(max(model.context * _BYTES_PER_TOKEN, _BODY_BYTES[0]), _BODY_BYTES[1])

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(batcher.run()), asyncio.create_task(_beat())]
        yield
        for task in tasks:
            task.cancel()
        tokeniser.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok", "model": names[0]}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        root = {} if base is None else {"root": str(base), "parent": None}
        own = [{"id": name, "object": "model", "owned_by": "ratchet", **root} for name in names]
        return {"object": "list", "data": [*own, *adapters.listed(names[0])]}

    if base is not None:
        add_endpoints(app, adapters, names)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(call: Request) -> Response:
        try:
            request = Chat.model_validate_json(await read_body(call, most))
        except CallerGone:
            return _error(499, "the caller has closed the connection")
        except TooLarge as error:
            return _error(413, f"{error}, so it does not fit into the context of {model.context} tokens")
        except ValidationError as error:
            return _error(422, f"the request is invalid: {'; '.join(one.sentence(quote=False) for one in problems(error))}")
        served = (*names, *adapters.roots)
        if request.model not in served:
            return _error(404, f"this server serves {' and '.join(map(repr, served))}, not {request.model!r}")
        try:
            prompt = await asyncio.get_running_loop().run_in_executor(tokeniser, model.encode, request.messages, request.tools or None)
        except Exception as error:  # a failure of the chat template is an error of the caller
            return _error(400, f"the chat template rejects these messages: {error}")
        room = model.context - len(prompt)
        if room <= 0:
            return _error(400, f"the prompt has {len(prompt)} tokens and leaves no space for an answer; the context has {model.context}")
        usage = request.stream_options is not None and request.stream_options.include_usage
        calls = model.call_format if request.tools else None
        adapter = "" if request.model in names else request.model
        completion = Completion(model, request.model, len(prompt), request.n, request.logprobs, usage, calls)
        if request.stream:
            return StreamingResponse(_stream(batcher, completion, request, prompt, room, adapter), media_type="text/event-stream")
        rows = _rows(request, prompt, room, adapter)
        try:
            results = await while_connected(call, asyncio.gather(*(batcher.submit(row) for row in rows)))
        except CallerGone:
            return _error(499, "the caller has closed the connection")
        except asyncio.QueueFull:
            return _error(503, _BUSY)
        except RuntimeError as error:
            return _error(500, str(error))
        return JSONResponse(completion.whole(results))

    return app


async def _beat() -> None:
    """Note every second that the process runs."""
    while True:
        beat()
        await asyncio.sleep(BEAT_SECONDS)


async def _stream(
    batcher: Batcher, completion: Completion, request: Chat, prompt: list[int], room: int, adapter: str
) -> AsyncIterator[bytes]:
    """Generate the answers and return their events as the tokens arrive. An error ends the stream with an event that describes it."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[int, Piece] | None] = asyncio.Queue()

    def listener(index: int) -> Listener:
        def tell(piece: Piece) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, (index, piece))

        return tell

    rows = _rows(request, prompt, room, adapter)
    if not completion.may_call:  # whether an answer calls a tool is known at its end
        rows = [replace(row, listener=listener(index)) for index, row in enumerate(rows)]
    work = asyncio.gather(*(batcher.submit(row) for row in rows))
    work.add_done_callback(lambda _: pieces.put_nowait(None))  # runs after the callbacks of the last pieces
    try:
        yield completion.begin()
        while (found := await pieces.get()) is not None:
            yield completion.piece(*found)
        results = await work
        for index, result in enumerate(results if completion.may_call else ()):
            yield completion.answer(index, result)
        yield completion.end()
    except asyncio.QueueFull:
        yield event(error_body(_BUSY))
    except RuntimeError as error:
        yield event(error_body(str(error)))
    finally:
        work.cancel()  # if the caller is gone


def _rows(request: Chat, prompt: list[int], room: int, adapter: str) -> list[GenerationRow]:
    limit = min(request.max_tokens or request.max_completion_tokens or 256, room)
    seed = request.seed if request.seed is not None else int.from_bytes(os.urandom(4), "big")
    return [GenerationRow(prompt, request.temperature, (seed + i) % 2**63, limit, request.logprobs, adapter) for i in range(request.n)]


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse(error_body(message), status_code=status, headers={"retry-after": "1"} if status == 503 else None)
