"""`Server` on one machine: one process per model version, found again by pid and start time."""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import Field, ValidationError

from contracts.errors import ConfigError
from contracts.files import FolderArtifacts
from contracts.model import Frozen
from contracts.serving import Capabilities, Endpoint, ModelVersion
from contracts.threads import threads_of
from local.service import Service

Options = TypeVar("Options", bound=Frozen)


class EmbeddedOptions(Frozen):
    """`[serving.options]` of kind "embedded"."""

    threads: int = Field(default_factory=lambda: min(4, os.cpu_count() or 1), ge=1)
    """CPU threads of each server."""


class VllmOptions(Frozen):
    """`[serving.options]` of kind "vllm"."""

    executable: str = "vllm"
    """The program, by name or path; vLLM is installed in an environment of its own."""
    arguments: tuple[str, ...] = ()
    """Further arguments of `vllm serve`, such as --gpu-memory-utilization 0.4 where two versions share a GPU."""
    patience: float = Field(default=900.0, gt=0)
    """Seconds until it must answer: a large model takes minutes to load."""


class _ProcessServer(Generic[Options]):
    """One process per version. Their files are fetched (and verified) from the artifacts."""

    capabilities = Capabilities(sampling=True, seed=True, logprobs=True)
    options_type: type[Options]

    def __init__(self, folder: Path, artifacts: Path, options: dict[str, Any]) -> None:
        try:
            self._options = self.options_type.model_validate(options)
        except ValidationError as error:
            known = ", ".join(self.options_type.model_fields)
            problem = error.errors()[0]
            raise ConfigError(f"serving.options.{'.'.join(map(str, problem['loc']))}: {problem['msg']}; known here: {known}") from None
        self._folder = folder.absolute() / "servers"
        self._models = folder.absolute() / "models"
        self._artifacts = FolderArtifacts(artifacts)

    def ensure(self, version: ModelVersion) -> Endpoint:
        ready = self._service(version.tag, None).ready()
        if ready is not None:
            return _endpoint(version.tag, ready)
        model = self._artifacts.fetch(version.model.files, self._models / version.model.files)
        return _endpoint(version.tag, self._service(version.tag, model).ensure())

    def running(self) -> list[Endpoint]:
        tags = sorted(path.name for path in self._folder.glob("*") if path.is_dir())
        states = [(tag, self._service(tag, None).ready()) for tag in tags]
        return [_endpoint(tag, ready) for tag, ready in states if ready]

    def stop(self, tag: str) -> None:
        self._service(tag, None).remove()

    @abstractmethod
    def _service(self, tag: str, model: Path | None) -> Service:
        """The version's process; `model` is needed to start it only."""


class EmbeddedServer(_ProcessServer[EmbeddedOptions]):
    """Serves versions with local/serve.py."""

    options_type = EmbeddedOptions

    def _service(self, tag: str, model: Path | None) -> Service:
        command = ["-m", "local.serve", str(model), "--name", tag, "--threads", str(self._options.threads)]
        environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **threads_of(self._options.threads)}
        return Service(self._folder / tag, command, environment)


class VllmServer(_ProcessServer[VllmOptions]):
    """Serves versions with vLLM, where there is a GPU. Tested with a stand-in for the `vllm` program; never run on the real one."""

    options_type = VllmOptions

    def _service(self, tag: str, model: Path | None) -> Service:
        command = ["-m", "local.vllm", str(model), tag, self._options.executable, *self._options.arguments]
        return Service(self._folder / tag, command, {"HF_HUB_OFFLINE": "1"}, patience=self._options.patience)


def _endpoint(tag: str, ready: dict[str, Any]) -> Endpoint:
    return Endpoint(tag=tag, url=f"http://127.0.0.1:{ready['port']}", model=tag)
