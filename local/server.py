"""Implements the `Server` port on one machine: one process per model version, found again by pid and start time."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import Field, ValidationError

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.ids import Digest
from ratchet.contracts.model import Frozen
from ratchet.contracts.ports import Artifacts
from ratchet.contracts.serving import Capabilities, Endpoint, ModelVersion, Outage
from ratchet.contracts.wording import invalid_options
from ratchet.local.guests import Guests, Loaded
from ratchet.local.service import ManagedProcess
from ratchet.local.vllm_adapter import BASE_NAME, RANKS, RUNTIME_LOADING, adapter_arguments, adapter_rank, allowed_rank, sharing_arguments
from ratchet.runtime.serving.announcement import STARTED
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
    max_lora_rank: int = Field(default=64, gt=0, le=RANKS[-1])
    """With `serving.adapters = "shared"`: highest rank of an adapter that a running server can load. vLLM reserves memory for it. It is
    rounded up to a value that vLLM allows."""


class _ProcessServer(Generic[Options]):
    """Runs one process per version. Model files are fetched from the artifacts and verified.

    The process of an adapter loads its base model, which is fetched by the digest that the version pins, and the adapter over it. With
    `shared`, an adapter is loaded into the running process of the version that is its base model instead (`guests.py`). A version stays
    where it is, also if the setting changes, until it is stopped.

    A process answers to the tag of its version, and to the model names of the line, so that a proxy can send it requests of clients while
    the router is down. It keeps the names that it was started with.
    """

    capabilities = Capabilities(sampling=True, seed=True, logprobs=True, adapters=True, sharing=True)
    options_type: type[Options]

    def __init__(self, folder: Path, artifacts: Artifacts, served_model: str, **options: Any) -> None:
        try:
            self._options = self.options_type.model_validate(options)
        except ValidationError as error:
            raise invalid_options("serving.options", self.options_type, error) from None
        self._folder = folder.absolute() / "servers"
        self._models = folder.absolute() / "models"
        self._artifacts = artifacts
        self._guests = Guests(self._folder)
        self.names: Callable[[], tuple[str, ...]] = lambda: (served_model,)
        """Returns the model names by which clients may call the line, for a process that is started."""
        self.shared = False
        """Whether new adapters are loaded into the process of their base model (`serving.adapters`)."""

    def ensure(self, version: ModelVersion) -> Endpoint:
        """Return the endpoint of a server for `version`. Starts the server if it does not run, and waits until it answers."""
        ready = self._service(version.tag, None).ready()
        if ready is not None:
            self._guests.retire(version.tag, False)
            return _endpoint(version.tag, ready)
        host = self._guests.host_of(version.tag)
        if host is None and self.shared and version.model.parent is not None:
            host = self._guests.host_over(version.model.base)
        if host is not None:
            return self._ensure_guest(version, host)
        model, adapter = self._fetched(version.model.base), None
        if version.model.parent is not None:
            adapter = self._fetched(version.model.files)
        return _endpoint(version.tag, self._start(version.tag, version.model.base, model, adapter))

    def _start(self, tag: str, base: Digest, model: Path, adapter: Path | None = None) -> dict[str, Any]:
        """Start the process of a version, which can hold adapters of others if that is wanted or if it has held some."""
        sharing = adapter is None and (self.shared or bool(self._guests.of(tag)))
        service = self._service(tag, model, adapter, sharing)
        with service.locked():
            if service.process() is None:
                self._guests.note_host(tag, {"base": base, "rank": self._most_rank()} if sharing else None)
            return service.begin()

    def _ensure_guest(self, version: ModelVersion, host: str) -> Endpoint:
        """Load an adapter into the process of `host`, which is started if it does not run."""
        adapter = self._fetched(version.model.files)
        ready = self._start(host, version.model.base, self._fetched(version.model.base))
        if (refused := self._refusal(host, adapter_rank(adapter))) is not None:
            raise Permanent(f"{version.tag} cannot be loaded into the server of {host}: {refused}")
        with self._service(host, None).locked():
            self._guests.load(version.tag, adapter, host, ready, host)
        return _guest(version.tag, host, ready)

    def _fetched(self, files: Digest) -> Path:
        return self._artifacts.fetch(files, self._models / files)

    def running(self) -> list[Endpoint]:
        """Return the endpoints of all servers that run and are ready, and of the adapters that they list.

        A process whose own version is not wanted any more, and that still holds adapters, is not an endpoint of its version.
        """
        tags = sorted(path.name for path in self._folder.glob("*") if path.is_dir())
        states = [(tag, self._service(tag, None).ready()) for tag in tags]
        found = [_endpoint(tag, ready) for tag, ready in states if ready and not self._guests.is_retired(tag)]
        hosts = dict(self._guests.hosts())
        for host, ready in states:
            if ready and host in hosts:
                with contextlib.suppress(Retryable):  # the process does not answer: a caller that needs an adapter loads it again, or waits
                    found += [_guest(tag, host, ready) for tag in self._loaded(host, self._guests.listed(_endpoint(host, ready).url))]
        return found

    def _loaded(self, host: str, listed: Mapping[str, Loaded]) -> list[str]:
        """Return those of the listed adapters that are versions."""
        return sorted(tag for tag, one in listed.items() if self._models in one.root.parents and one.parent == host)

    def stop(self, tag: str) -> None:
        """Stop the server of version `tag` and delete its folder.

        An adapter is unloaded. A process that holds adapters of other versions goes on until the last of them is stopped.
        """
        guests, host = self._guests, self._guests.host_of(tag)
        if host is None and (self._folder / tag / STARTED).exists():
            guests.retire(tag, True)
            self._end_if_empty(tag)
            return
        for name, _ in guests.hosts():
            ready = self._service(name, None).ready()
            if ready is not None:
                guests.unload(tag, _endpoint(name, ready).url)
        if host is not None:
            guests.forget(tag)
            if guests.is_retired(host):
                self._end_if_empty(host)

    def _end_if_empty(self, host: str) -> None:
        """End the process of an unwanted version unless it holds adapters, and delete the records of those that it has lost."""
        ready = self._service(host, None).ready()
        if ready is not None and host in dict(self._guests.hosts()) and self._loaded(host, self._guests.listed(_endpoint(host, ready).url)):
            return
        self._service(host, None).remove()
        for tag in self._guests.of(host):
            self._guests.forget(tag)

    def cannot_share(self, host: ModelVersion, rank: int) -> str | None:
        """Return why an adapter of this rank cannot be loaded into the process of `host`, or None."""
        if self._service(host.tag, None).ready() and host.tag not in dict(self._guests.hosts()):
            return (
                f"the server of {host.tag} runs since before the setting, so it loads no adapters; stop the line's processes with "
                "`ratchet serve --stop`, and start them with `ratchet serve`"
            )
        return self._refusal(host.tag, rank)

    def outages(self, tag: str) -> tuple[Outage, ...]:
        """Return the times in which the process did not run into which the adapter `tag` is loaded."""
        host = self._guests.host_of(tag)
        ready = self._service(host, None).ready() if host else None
        return self._guests.outages(tag, ready["pid"] if ready else None)

    def _refusal(self, host: str, rank: int) -> str | None:
        """Return why the process of a version does not load an adapter of this rank, or None. One that does not run has the options."""
        most = dict(self._guests.hosts()).get(host, {"rank": self._most_rank()})["rank"]
        if most is None or rank <= most:
            return None
        return f"the adapter has rank {rank}, and the server loads ranks up to {most}; set serving.options.max_lora_rank before it starts"

    def _most_rank(self) -> int | None:
        """Return the highest rank of an adapter that a running server can load. None: any."""
        return None

    @abstractmethod
    def _service(self, tag: str, model: Path | None, adapter: Path | None = None, sharing: bool = False) -> ManagedProcess:
        """Return the process of a version. The folders of its model and, if it is one, of its adapter are needed only to start it.

        `sharing`: it can load adapters of other versions while it runs.
        """


class EmbeddedServer(_ProcessServer[EmbeddedOptions]):
    """Serves model versions with the embedded server (local/serve)."""

    options_type = EmbeddedOptions

    def ensure(self, version: ModelVersion) -> Endpoint:
        """Return the endpoint of a server for `version`, and start it if it does not run.

        Raises Permanent if torch or transformers or, for an adapter, PEFT is not installed.
        """
        needed = ("torch", "transformers", *(("peft",) if version.model.parent or self.shared else ()))
        absent = [name for name in needed if importlib.util.find_spec(name) is None]
        if absent:
            raise Permanent(f"the embedded model server needs {' and '.join(absent)}; install ratchet[train] on this machine")
        return super().ensure(version)

    def _service(self, tag: str, model: Path | None, adapter: Path | None = None, sharing: bool = False) -> ManagedProcess:
        command = ["-m", "ratchet.local.serve", str(model), *(part for name in (tag, *self.names()) for part in ("--name", name))]
        command += ["--threads", str(self._options.threads), *(("--adapter", str(adapter)) if adapter else ())]
        command += ["--share"] if sharing else []
        environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **threads_of(self._options.threads)}
        return ManagedProcess(self._folder / tag, command, environment)


class VllmServer(_ProcessServer[VllmOptions]):
    """Serves model versions with vLLM. Tested with vLLM 0.32 on a CPU; on a GPU, its start failed once (docs/howto/use-a-gpu.md)."""

    options_type = VllmOptions

    def _service(self, tag: str, model: Path | None, adapter: Path | None = None, sharing: bool = False) -> ManagedProcess:
        names, more, environment = (tag, *self.names()), list[str](), {"HF_HUB_OFFLINE": "1"}
        if adapter is not None:
            names, more = (BASE_NAME,), adapter_arguments(names, adapter)
        elif sharing:
            more, environment = sharing_arguments(self._most_rank()), environment | {RUNTIME_LOADING: "True"}
        command = ["-m", "ratchet.local.vllm", str(model), *names, "--", self._options.executable, *more, *self._options.arguments]
        # vLLM measures the free memory while it starts, and gives up if another process frees or takes some at this moment.
        return ManagedProcess(self._folder / tag, command, environment, timeout=self._options.patience, again=1)

    def _most_rank(self) -> int:
        return allowed_rank(self._options.max_lora_rank)


def _endpoint(tag: str, ready: dict[str, Any]) -> Endpoint:
    return Endpoint(tag=tag, url=f"http://127.0.0.1:{ready['port']}", model=tag)


def _guest(tag: str, host: str, ready: dict[str, Any]) -> Endpoint:
    return _endpoint(tag, ready).model_copy(update={"host": host})
