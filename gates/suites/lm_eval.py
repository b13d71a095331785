"""Asks both models a task of EleutherAI's lm-evaluation-harness, and compares how often they solve its documents.

The harness has dozens of dependencies, so it runs in a process of its own, with the Python of its own environment
(`lm_eval_driver.py`). Nothing is downloaded, and the process gets neither the secrets nor the proxies of this one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from ratchet.contracts.data.datasets import HoldoutEdition, Label
from ratchet.contracts.errors import ConfigError, Inconclusive, RatchetError, Retryable, Unreachable
from ratchet.contracts.evaluation import ChatAnswer, ChatRequest, SuiteReport
from ratchet.contracts.ids import canonical, digest, digest_file
from ratchet.contracts.loop import LmEvalSettings, SuiteSettings
from ratchet.contracts.model import Frozen, ModelRef
from ratchet.contracts.ports import Artifacts, ModelClient, Progress
from ratchet.contracts.serving import Endpoint
from ratchet.contracts.wording import first_problem
from ratchet.gates.server_reason import server_reason
from ratchet.gates.suites.asking import SuiteComparison
from ratchet.gates.suites.tasks import SuiteTask

DRIVER = Path(__file__).with_name("lm_eval_driver.py")
CONCURRENCY = 16
"""Number of requests at a time, as for the other prompts of an evaluation."""
_REQUEST_TIMEOUT = 300
_LOOK_SECONDS = 300.0
_LARGEST_RESULT = 512 << 20
_READ_OF_LOG = 64 << 10
_NOT_DIGESTED = (".pyc", ".safetensors", ".bin", ".pt", ".pth", ".gguf")
_KEPT = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE",
    "HF_MODULES_CACHE", "NLTK_DATA",
)  # fmt: skip
"""Variables of the environment that the process gets."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Variables with which nothing is downloaded by its name."""
_REMEDIES = {
    "task": "correct task or folder",
    "unsafe": "Ratchet does not run it; use a suite with a file and the scorer `code`, which has a sandbox",
    "output": "choose a task of the kind generate_until or multiple_choice",
    "chat": "set chat = false if the server returns the probabilities of a prompt (vLLM does, the embedded server does not), or choose a "
    "task that generates its answers",
    "tokenizer": "set tokenizer to the folder with the tokenizer of the model",
    "metric": "set metric to one with values from 0 to 1, of which more is better, or choose another task",
    "filter": "correct filter, or remove it",
    "group": "correct group, or remove it",
    "logprobs": "choose a task that generates its answers, or a server with echo and logprobs, such as vLLM",
}
"""Reasons for which the settings must change -> what to change."""


class LmEvalRow(Frozen):
    """What lm-eval records of one document with the filter that decides."""

    task: str
    document: int
    filter: str
    messages: tuple[dict[str, Any], ...]
    target: str
    group: str | None = None
    answer: str | None
    """None if the server returned no text."""
    error: str | None = None
    """Why there is no answer: a status such as `HTTP 400`, or a description."""
    said: str = ""
    """What the server said about it."""
    scores: dict[str, float | None]
    """Metric -> its value. None for a metric of all documents together, and for a value that is not finite."""


class LmEvalLook(Frozen):
    """What is known of the tasks before a model is asked."""

    kind: str = "looked"
    version: str
    documents: dict[str, int]
    """Task -> number of its documents that are asked."""
    groups: dict[str, int]
    """Task -> number of groups of these documents, each of which is one observation."""


Found = TypeVar("Found", bound=LmEvalLook)
Side = tuple[ModelRef, ModelClient]
"""One of the two models, and the client of its server."""


class LmEvalRun(LmEvalLook):
    """The run of one model."""

    metrics: dict[str, tuple[str, ...]]
    """Task -> its metrics in its own order. The first one decides if the suite names none."""
    rows: tuple[LmEvalRow, ...]
    temperature: float = Field(default=0.0, ge=0)


@dataclass(frozen=True)
class LmEvalSuite:
    """A suite whose tasks lm-eval asks."""

    name: str
    settings: SuiteSettings
    task: LmEvalSettings
    folder: Path
    """Folder of the loop file."""
    artifacts: Artifacts

    def look(self) -> LmEvalLook:
        """Load the tasks without a model.

        Raises ConfigError if the task cannot be run, and Retryable if this machine lacks the program or the data.
        """
        return self._run(LmEvalLook, None, _LOOK_SECONDS, lambda: None)

    def ask(
        self,
        edition: HoldoutEdition,
        sides: tuple[Side, Side],
        progress: Progress,
        level: float,
    ) -> SuiteReport:
        """Let lm-eval ask the champion, and then the candidate, and compare them per document.

        A run in which no answer is missing is bound to the edition, the two models and the tags of their versions, so that a repeat after a
        crash only repeats the run that was not complete. The tag of a candidate is that of one cycle: another cycle asks again.
        Raises as `look`; Unreachable if a server refuses connections; and Inconclusive if a run fails or takes too long.
        """
        tags = [one.tag if (one := _endpoint(client)) else None for _, client in sides]
        pair = [self._identity(), *(model.id for model, _ in sides), *tags]
        runs = list[LmEvalRun]()
        for side, (_, client) in zip(("champion", "candidate"), sides, strict=True):
            name = f"edition/{edition.line}/{edition.number}/suite/{digest([*pair, side])}"
            bound = self.artifacts.resolve(name)
            if bound is None:
                runs.append(run := self._asked(side, client, progress))
                if all(row.answer is not None for row in run.rows):
                    self.artifacts.bind(name, self.artifacts.put(canonical(run.model_dump(mode="json"))))
            else:
                runs.append(LmEvalRun.model_validate_json(self.artifacts.get(bound)))
        return compared(self.name, self.settings, self.task, (runs[0], runs[1]), self.artifacts, level)

    def _asked(self, side: str, client: ModelClient, progress: Progress) -> LmEvalRun:
        endpoint = _endpoint(client)
        if endpoint is None:
            raise ConfigError(f"{self._where}: the client of the {side} has no address that lm-eval could ask")
        alive = lambda: progress(f"lm-eval asks the {side} {self.task.task}", 0, 0)  # noqa: E731
        run = self._run(LmEvalRun, endpoint, self.task.timeout, alive)
        if run.rows and all((row.error or "").startswith("HTTP") for row in run.rows):
            why = _answer(run.rows[0]).failure
            raise Inconclusive(f"{self._where}: the server of {endpoint.tag} refuses all {len(run.rows)} documents: {why}")
        return run

    @property
    def _where(self) -> str:
        return f"gate.suites.{self.name}.lm_eval"

    def _identity(self) -> str:
        """Return the digest of everything that decides what is asked and how it is scored."""
        folders = [self.folder / one for one in (self.task.folder, self.task.tokenizer) if one is not None]
        settings = self.task.model_dump(mode="json", exclude={"timeout"})
        return digest([self.name, settings, self._generation(), [_files(one) for one in folders]])

    def _generation(self) -> dict[str, Any]:
        """Return the options of the generation that the suite sets itself."""
        found: dict[str, Any] = {}
        if "temperature" in self.settings.model_fields_set:
            found |= {"temperature": self.settings.temperature, "do_sample": self.settings.temperature > 0}
        if "max_tokens" in self.settings.model_fields_set:
            found["max_gen_toks"] = self.settings.max_tokens
        return found

    def _run(self, form: type[Found], endpoint: Endpoint | None, seconds: float, alive: Callable[[], None]) -> Found:
        task = self.task
        order = {
            "task": task.task,
            "folder": None if task.folder is None else str((self.folder / task.folder).resolve()),
            "chat": task.chat,
            "tokenizer": None if task.tokenizer is None else str((self.folder / task.tokenizer).resolve()),
            "few_shot": task.few_shot,
            "limit": task.limit,
            "group": task.group,
            "metric": task.metric,
            "filter": task.filter,
            "generation": self._generation(),
            "look": endpoint is None,
            "url": endpoint.url if endpoint else "",
            "model": endpoint.model if endpoint else "",
            "concurrency": CONCURRENCY,
            "request_timeout": _REQUEST_TIMEOUT,
        }
        python = self._python()
        found = _result(python, order, seconds, alive)
        kind, text = str(found["kind"]), str(found.get("text", ""))
        if kind in ("looked", "asked"):
            try:
                return form.model_validate(found)
            except ValidationError as error:
                raise Inconclusive(f"{self._where}: the result of lm-eval is invalid: {first_problem(error)}") from error
        raise self._error(kind, text, python, endpoint)

    def _python(self) -> str:
        if self.task.python is None:
            return sys.executable
        found = shutil.which(self.task.python) or shutil.which(self.folder / self.task.python)
        if found is None:
            raise Retryable(f"{self._where}.python: there is no program {self.task.python!r}; install lm-eval there, or correct the path")
        return str(Path(found).absolute())

    def _error(self, kind: str, text: str, python: str, endpoint: Endpoint | None) -> RatchetError:
        if kind in _REMEDIES:
            return ConfigError(f"{self._where}: {text}; {_REMEDIES[kind]}")
        if kind == "missing":
            return Retryable(
                f"{self._where}: {python} has no lm-eval ({text}); install `lm-eval[api]` in an environment of its own, and set "
                f"{self._where}.python to its Python"
            )
        if kind == "data":
            own = "" if self.task.folder is None else f"include_path={str((self.folder / self.task.folder).resolve())!r}"
            fetch = f"from lm_eval.tasks import TaskManager; TaskManager({own}).load([{self.task.task!r}])"
            return Retryable(
                f"{self._where}: the data of the task {self.task.task} are not on this machine ({text}), and nothing is downloaded by its "
                f'name; accept their terms, and fetch them as the user of the service: {python} -c "{fetch}"'
            )
        if endpoint is not None and (kind == "away" or "ClientConnectorError" in text):
            return Unreachable(f"the model server of {endpoint.tag} at {endpoint.url} refuses connections")
        of = f" of {endpoint.tag}" if endpoint else ""
        if kind == "time":
            return Inconclusive(f"{self._where}: the run{of} {text}; raise timeout, or set limit")
        return Inconclusive(f"{self._where}: the run{of} failed: {text}")


def compared(
    name: str, settings: SuiteSettings, task: LmEvalSettings, runs: tuple[LmEvalRun, LmEvalRun], artifacts: Artifacts, level: float
) -> SuiteReport:
    """Compare two runs per document, by one metric of each task.

    Raises ConfigError if the metric does not exist or is no number from 0 to 1 for each document, and
    Inconclusive if the two models were not asked the same by the same lm-eval.
    """
    where = f"gate.suites.{name}.lm_eval"
    if runs[0].version != runs[1].version:
        raise Inconclusive(f"{where}: lm-eval {runs[0].version} asked the champion, and {runs[1].version} the candidate")
    chosen = [_chosen(run, task, where) for run in runs]
    asked = [[(row.task, row.document, row.messages, row.target) for row, _ in side] for side in chosen]
    if asked[0] != asked[1]:
        raise Inconclusive(f"{where}: the two models were not asked the same documents; a task must not draw its examples at random")
    numbers = {task: place for place, task in enumerate(dict.fromkeys(row.task for row, _ in chosen[0]), 1)}
    try:
        tasks = tuple(_task(row, numbers[row.task]) for row, _ in chosen[0])
    except ValidationError as error:
        raise Inconclusive(f"{where}: what lm-eval asked is no conversation: {first_problem(error)}") from error
    answers = [[_answer(row) for row, _ in side] for side in chosen]
    labels = [[_label(row, metric, where) for row, metric in side] for side in chosen]
    used = sorted({f"{row.task} {metric} ({row.filter})" for row, metric in chosen[0]})
    told = f"lm-eval {runs[0].version}, {', '.join(used[:3])}" + (f" and {len(used) - 3} more" if len(used) > 3 else "")
    compare = SuiteComparison(name, tasks, settings, artifacts)
    return compare.report((answers[0], answers[1]), (labels[0], labels[1]), runs[0].temperature, level, told)


def _chosen(run: LmEvalRun, task: LmEvalSettings, where: str) -> list[tuple[LmEvalRow, str]]:
    """Return the rows in a fixed order, each with the name of its metric. The driver keeps the rows of the filter that decides only."""
    found = []
    for row in sorted(run.rows, key=lambda one: (one.task, one.document)):
        metric = task.metric or next(iter(run.metrics.get(row.task, ())), "")
        if metric not in row.scores:
            raise ConfigError(f"{where}.metric: the task {row.task} has no metric {metric!r}; it has {', '.join(sorted(row.scores))}")
        found.append((row, metric))
    return found


def _task(row: LmEvalRow, number: int) -> SuiteTask:
    name = re.sub(r"[^\w.-]+", "_", row.task)[-50:]
    group = f"{row.task}: {row.group}" if row.group is not None else None
    return SuiteTask(id=f"{number}/{name}/{row.document}", messages=row.messages, reference=row.target, group=group)


def _answer(row: LmEvalRow) -> ChatAnswer:
    if row.answer is not None:
        return ChatAnswer(text=row.answer)
    reason = server_reason(row.said.encode(), ChatRequest(messages=row.messages)) if row.said else ""
    return ChatAnswer(text=None, error=row.error or "no text in the answer", reason=reason)


def _label(row: LmEvalRow, metric: str, where: str) -> Label:
    score = row.scores[metric]
    if row.answer is None:
        return Label(None, None, {}, 0)
    if score is None or not 0.0 <= score <= 1.0:
        known = ", ".join(sorted(key for key, value in row.scores.items() if value is not None and 0.0 <= value <= 1.0))
        raise ConfigError(
            f"{where}.metric: {metric} of the task {row.task} is no number from 0 to 1 for each document; "
            f"{f'set metric to one of {known}' if known else 'choose another task'}"
        )
    return Label(score, None, {}, 0)


def _endpoint(client: ModelClient) -> Endpoint | None:
    found: Endpoint | None = getattr(client, "endpoint", None)
    return found


def _files(folder: Path) -> list[list[str]]:
    """Return the paths and digests of the files of a folder, also of linked folders, without compiled programs and weights of models."""
    found, seen = list[list[str]](), set[str]()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:  # links may form a circle
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(one for one in folders if one != "__pycache__")
        paths = [Path(place) / one for one in names if not one.endswith(_NOT_DIGESTED)]
        found += [[path.relative_to(folder).as_posix(), digest_file(path)] for path in paths if path.is_file()]
    return sorted(found)


def _result(python: str, order: dict[str, Any], seconds: float, alive: Callable[[], None]) -> dict[str, Any]:
    """Run the driver, and return what it wrote. Calls `alive` from time to time. Nothing of the process is left at the end."""
    with tempfile.TemporaryDirectory(prefix="ratchet-lm-eval-", ignore_cleanup_errors=True) as place:
        out, log = Path(place) / "run.json", Path(place) / "log"
        environment = {key: os.environ[key] for key in _KEPT if key in os.environ} | OFFLINE | {"TOKENIZERS_PARALLELISM": "false"}
        with log.open("wb") as text:
            process = subprocess.Popen(
                [python, "-I", "-B", str(DRIVER)],
                cwd=place,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=text,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(order | {"out": str(out)}).encode() + b"\n")
                process.stdin.flush()
            if not _ended(process, seconds, alive):
                return {"kind": "time", "text": f"did not end within {seconds:g} s"}
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()  # type: ignore[union-attr]
        try:
            if out.stat().st_size > _LARGEST_RESULT:
                return {"kind": "failed", "text": f"its result has more than {_LARGEST_RESULT >> 20} MiB; set limit"}
            found: dict[str, Any] = json.loads(out.read_bytes())
        except FileNotFoundError:
            last = _end_of(log).strip().splitlines()[-1:]
            return {"kind": "failed", "text": f"the process ended with status {process.returncode}: {' '.join(last)[-300:]}"}
        return found


def _end_of(log: Path) -> str:
    with log.open("rb") as text:
        text.seek(max(0, log.stat().st_size - _READ_OF_LOG))
        return text.read().decode(errors="replace")


def _ended(process: subprocess.Popen[bytes], seconds: float, alive: Callable[[], None]) -> bool:
    end, told = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            if time.monotonic() - told >= 5:
                alive()
                told = time.monotonic()
        else:
            return True
    return False
