"""The embedded server's endpoints that load and unload adapters of other versions. Paths and fields are those of vLLM.

They read files of this machine, so only the service may call them. The server listens on loopback, and no router passes them on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field

from ratchet.local.serve.completions import error_body
from ratchet.local.serve.generate import Model


class LoadRequest(BaseModel):
    """Name and folder of an adapter to load."""

    lora_name: str = Field(min_length=1)
    lora_path: Path


class UnloadRequest(BaseModel):
    """Name of an adapter to unload."""

    lora_name: str


class Adapters:
    """The adapters that a model has loaded. Holding `lock` keeps them as they are."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.lock = asyncio.Lock()
        self.roots: dict[str, Path] = {}
        """Name -> folder."""

    async def load(self, name: str, folder: Path) -> None:
        """Load an adapter between two batches. Raises ValueError if its files cannot be loaded over the model."""
        async with self.lock:
            try:
                await asyncio.to_thread(self._model.load, name, folder)
            except Exception as error:  # peft, torch and safetensors raise many types for files that do not fit
                raise ValueError(f"{folder} cannot be loaded over the model: {error}") from error
            self.roots[name] = folder

    async def unload(self, name: str) -> None:
        """Unload an adapter between two batches."""
        async with self.lock:
            await asyncio.to_thread(self._model.unload, name)
            del self.roots[name]

    def listed(self, base: str) -> list[dict[str, Any]]:
        """Return the entries of the adapters in the list of models. `base` is the model name of the model itself."""
        return [
            {"id": name, "object": "model", "owned_by": "ratchet", "root": str(root), "parent": base} for name, root in self.roots.items()
        ]


def add_endpoints(app: FastAPI, adapters: Adapters, names: Sequence[str]) -> None:
    """Add the endpoints to an app whose model has these `names`."""

    @app.post("/v1/load_lora_adapter", response_model=None)
    async def load(request: LoadRequest) -> Response:
        if request.lora_name in names or request.lora_name in adapters.roots:
            return _refused(400, f"{request.lora_name!r} is loaded already")
        try:
            await adapters.load(request.lora_name, request.lora_path)
        except ValueError as error:
            return _refused(400, str(error))
        return PlainTextResponse(f"{request.lora_name} is loaded")

    @app.post("/v1/unload_lora_adapter", response_model=None)
    async def unload(request: UnloadRequest) -> Response:
        if request.lora_name not in adapters.roots:
            return _refused(404, f"{request.lora_name!r} is not loaded")
        await adapters.unload(request.lora_name)
        return PlainTextResponse(f"{request.lora_name} is unloaded")


def _refused(status: int, message: str) -> JSONResponse:
    return JSONResponse(error_body(message), status_code=status)
