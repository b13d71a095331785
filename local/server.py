"""Implements the `Server` port on one machine: one process per model version, found again by pid and start time."""

from __future__ import annotations

import importlib.util
import os
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import Field, ValidationError

from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import Digest
from ratchet.contracts.model import Frozen
from ratchet.contracts.ports import Artifacts
from ratchet.contracts.serving import Capabilities, Endpoint, ModelVersion
from ratchet.contracts.wording import invalid_options
from ratchet.local.service import ManagedProcess
from ratchet.local.vllm_adapter import BASE_NAME, adapter_arguments
from ratchet.runtime.threads import threads_of

Options = TypeVar("Options", bound=Frozen)


class EmbeddedOptions(Frozen):
    """Settings in `[serving.options]` for servers of kind "embedded"."""

    threads: int = Field(default_factory=lambda: min(4, os.cpu_count() or 1), ge=1)
    """CPU threads of each server. Default: the number of CPUs, at most 4."""


class VllmOptions(Frozen):
    """Settings in `[serving.options]` for servers of kind "vllm"."""

    executable: str = "vllm"
    """Name or path of the vLLM program, which is installed in a separate environment."""
    arguments: tuple[str, ...] = ()
    """Additional arguments of `vllm serve`, for example --gpu-memory-utilization 0.4 if two versions share a GPU."""
    patience: float = Field(default=900.0, gt=0)
    """Timeout in seconds until the server answers. A large model takes minutes to load."""


class _ProcessServer(Generic[Options]):
    """Runs one process per version. Model files are fetched from the artifacts and verified.

    The process of an adapter loads its base model, which is fetched by the digest that the version pins, and the adapter over it.

    A process answers to the tag of its version, and to the model names of the line, so that a proxy can send it requests of clients while
    the router is down. It keeps the names that it was started with.
    """

    capabilities = Capabilities(sampling=True, seed=True, logprobs=True, adapters=True)
    options_type: type[Options]

    def __init__(self, folder: Path, artifacts: Artifacts, served_model: str, **options: Any) -> None:
        try:
            self._options = self.options_type.model_validate(options)
        except ValidationError as error:
            raise invalid_options("serving.options", self.options_type, error) from None
        self._folder = folder.absolute() / "servers"
        self._models = folder.absolute() / "models"
        self._artifacts = artifacts
        self.names: Callable[[], tuple[str, ...]] = lambda: (served_model,)
        """Returns the model names by which clients may call the line, for a process that is started."""

    def ensure(self, version: ModelVersion) -> Endpoint:
        """Return the endpoint of a server for `version`. Starts the server if it does not run, and waits until it answers."""
        ready = self._service(version.tag, None).ready()
        if ready is not None:
            return _endpoint(version.tag, ready)
        model, adapter = self._fetched(version.model.base), None
        if version.model.parent is not None:
            adapter = self._fetched(version.model.files)
        return _endpoint(version.tag, self._service(version.tag, model, adapter).ensure())

    def _fetched(self, files: Digest) -> Path:
        return self._artifacts.fetch(files, self._models / files)

    def running(self) -> list[Endpoint]:
        """Return the endpoints of all servers that run and are ready."""
        tags = sorted(path.name for path in self._folder.glob("*") if path.is_dir())
        states = [(tag, self._service(tag, None).ready()) for tag in tags]
        return [_endpoint(tag, ready) for tag, ready in states if ready]

    def stop(self, tag: str) -> None:
        """Stop the server of version `tag` and delete its folder."""
        self._service(tag, None).remove()

    @abstractmethod
    def _service(self, tag: str, model: Path | None, adapter: Path | None = None) -> ManagedProcess:
        """Return the process of a version. The folders of its model and, if it is one, of its adapter are needed only to start it."""


class EmbeddedServer(_ProcessServer[EmbeddedOptions]):
    """Serves model versions with the embedded server (local/serve)."""

    options_type = EmbeddedOptions

    def ensure(self, version: ModelVersion) -> Endpoint:
        """Return the endpoint of a server for `version`, and start it if it does not run.

        Raises Permanent if torch or transformers or, for an adapter, PEFT is not installed.
        """
        needed = ("torch", "transformers", *(("peft",) if version.model.parent else ()))
        absent = [name for name in needed if importlib.util.find_spec(name) is None]
        if absent:
            raise Permanent(f"the embedded model server needs {' and '.join(absent)}; install ratchet[train] on this machine")
        return super().ensure(version)

    def _service(self, tag: str, model: Path | None, adapter: Path | None = None) -> ManagedProcess:
        command = ["-m", "ratchet.local.serve", str(model), *(part for name in (tag, *self.names()) for part in ("--name", name))]
        command += ["--threads", str(self._options.threads), *(("--adapter", str(adapter)) if adapter else ())]
        environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **threads_of(self._options.threads)}
        return ManagedProcess(self._folder / tag, command, environment)


class VllmServer(_ProcessServer[VllmOptions]):
    """Serves model versions with vLLM. Tested with vLLM 0.32 on a CPU, never on a GPU."""

    options_type = VllmOptions

    def _service(self, tag: str, model: Path | None, adapter: Path | None = None) -> ManagedProcess:
        names = (tag, *self.names())
        served, more = (names, []) if adapter is None else ((BASE_NAME,), adapter_arguments(names, adapter))
        command = ["-m", "ratchet.local.vllm", str(model), *served, "--", self._options.executable, *more, *self._options.arguments]
        return ManagedProcess(self._folder / tag, command, {"HF_HUB_OFFLINE": "1"}, timeout=self._options.patience)


def _endpoint(tag: str, ready: dict[str, Any]) -> Endpoint:
    return Endpoint(tag=tag, url=f"http://127.0.0.1:{ready['port']}", model=tag)
