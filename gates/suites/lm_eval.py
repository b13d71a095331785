"""Asks both models a task of EleutherAI's lm-evaluation-harness, and compares how often they solve its documents.

The harness has dozens of dependencies, so it runs in a process of its own, with the Python of its own environment
(`lm_eval_driver.py`). Nothing is downloaded, and the process gets neither the secrets nor the proxies of this one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from ratchet.contracts.data.datasets import HoldoutEdition, Label
from ratchet.contracts.errors import ConfigError, Inconclusive, RatchetError, Retryable, Unreachable
from ratchet.contracts.evaluation import ChatAnswer, SuiteReport
from ratchet.contracts.ids import canonical, digest, digest_file
from ratchet.contracts.loop import LmEvalSettings, SuiteSettings
from ratchet.contracts.model import Frozen, ModelRef
from ratchet.contracts.ports import Artifacts, ModelClient, Progress
from ratchet.contracts.serving import Endpoint
from ratchet.gates.suites.asking import SuiteComparison
from ratchet.gates.suites.tasks import SuiteTask

DRIVER = Path(__file__).with_name("lm_eval_driver.py")
CONCURRENCY = 16
"""Number of requests at a time, as for the other prompts of an evaluation."""
_REQUEST_TIMEOUT = 300
_LOOK_SECONDS = 300.0
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
    "logprobs": "choose a task that generates its answers, or a server with echo and logprobs, such as vLLM",
}
"""Reasons for which the settings must change -> what to change."""


class LmEvalRow(Frozen):
    """What lm-eval records of one document with one filter."""

    task: str
    document: int
    filter: str
    messages: tuple[dict[str, Any], ...]
    target: str
    group: str | None = None
    answer: str | None
    """None if the server returned no text."""
    scores: dict[str, float | None]
    """Metric -> its value. None for a metric of all documents together."""


class LmEvalRun(Frozen):
    """The run of one model."""

    kind: str = "asked"
    version: str
    documents: dict[str, int]
    """Task -> number of its documents."""
    rows: tuple[LmEvalRow, ...] = ()
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

    def look(self) -> dict[str, int]:
        """Return the number of documents of each task, without a model.

        Raises ConfigError if the task cannot be run, and Retryable if this machine lacks the program or the data.
        """
        return self._run(None, _LOOK_SECONDS, lambda: None).documents

    def ask(
        self,
        edition: HoldoutEdition,
        champion: tuple[ModelRef, ModelClient],
        candidate: tuple[ModelRef, ModelClient],
        progress: Progress,
        level: float,
    ) -> SuiteReport:
        """Let lm-eval ask the champion, and then the candidate, and compare them per document.

        The result of each run is bound to the edition and the two models, so that a repeat after a crash only repeats the run that was not
        complete. Raises as `look`; Unreachable if a server refuses connections; and Inconclusive if a run fails or takes too long.
        """
        pair = [self._identity(), champion[0].id, candidate[0].id]
        runs = []
        for side, (_, client) in (("champion", champion), ("candidate", candidate)):
            name = f"edition/{edition.line}/{edition.number}/suite/{digest([*pair, side])}"
            bound = self.artifacts.resolve(name)
            if bound is None:
                run = self._asked(side, client, progress)
                bound = self.artifacts.bind(name, self.artifacts.put(canonical(run.model_dump(mode="json"))))
            runs.append(LmEvalRun.model_validate_json(self.artifacts.get(bound)))
        return compared(self.name, self.settings, self.task, (runs[0], runs[1]), self.artifacts, level)

    def _asked(self, side: str, client: ModelClient, progress: Progress) -> LmEvalRun:
        endpoint: Endpoint | None = getattr(client, "endpoint", None)
        if endpoint is None:
            raise ConfigError(f"{self._where}: the client of the {side} has no address that lm-eval could ask")
        return self._run(endpoint, self.task.timeout, lambda: progress(f"lm-eval asks the {side} {self.task.task}", 0, 0))

    @property
    def _where(self) -> str:
        return f"gate.suites.{self.name}.lm_eval"

    def _identity(self) -> str:
        """Return the digest of everything that decides what is asked and how it is scored."""
        own = None if self.task.folder is None else self.folder / self.task.folder
        files = [[path.relative_to(own).as_posix(), digest_file(path)] for path in sorted(own.rglob("*")) if path.is_file()] if own else []
        settings = self.task.model_dump(mode="json", exclude={"python", "timeout", "metric", "filter"})
        return digest([self.name, settings, self._generation(), files])

    def _generation(self) -> dict[str, Any]:
        """Return the options of the generation that the suite sets itself."""
        found: dict[str, Any] = {}
        if "temperature" in self.settings.model_fields_set:
            found |= {"temperature": self.settings.temperature, "do_sample": self.settings.temperature > 0}
        if "max_tokens" in self.settings.model_fields_set:
            found["max_gen_toks"] = self.settings.max_tokens
        return found

    def _run(self, endpoint: Endpoint | None, seconds: float, alive: Callable[[], None]) -> LmEvalRun:
        task = self.task
        order = {
            "task": task.task,
            "folder": None if task.folder is None else str((self.folder / task.folder).resolve()),
            "chat": task.chat,
            "tokenizer": None if task.tokenizer is None else str((self.folder / task.tokenizer).resolve()),
            "few_shot": task.few_shot,
            "limit": task.limit,
            "group": task.group,
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
            return LmEvalRun.model_validate(found)
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

    Raises ConfigError if the metric or the filter does not exist, or if the metric is no number from 0 to 1 for each document, and
    Inconclusive if the two models were not asked the same.
    """
    where = f"gate.suites.{name}.lm_eval"
    chosen = [_chosen(run.rows, task, where) for run in runs]
    asked = [[(row.task, row.document, row.messages, row.target) for row, _ in side] for side in chosen]
    if asked[0] != asked[1]:
        raise Inconclusive(f"{where}: the two models were not asked the same documents; a task must not draw its examples at random")
    tasks = tuple(
        SuiteTask(
            id=f"{row.task[-60:]}/{row.document}",
            messages=row.messages,
            reference=row.target,
            group=f"{row.task}: {row.group}" if row.group is not None else None,
        )
        for row, _ in chosen[0]
    )
    answers = [
        [ChatAnswer(text=row.answer, error=None if row.answer is not None else "no text in the answer") for row, _ in one] for one in chosen
    ]
    labels = [[_label(row, metric, where) for row, metric in side] for side in chosen]
    used = sorted({f"{row.task} {metric} ({row.filter})" for row, metric in chosen[0]})
    told = f"lm-eval {runs[0].version}, {', '.join(used[:3])}" + (f" and {len(used) - 3} more" if len(used) > 3 else "")
    compare = SuiteComparison(name, tasks, settings, artifacts)
    return compare.report((answers[0], answers[1]), (labels[0], labels[1]), runs[0].temperature, level, told)


def _chosen(rows: Sequence[LmEvalRow], task: LmEvalSettings, where: str) -> list[tuple[LmEvalRow, str]]:
    """Return the rows of the filter that decides, in a fixed order, each with the name of its metric."""
    filters = dict[str, str]()
    for row in rows:
        filters.setdefault(row.task, row.filter)
    if task.filter is not None and task.filter not in (known := {row.filter for row in rows}):
        raise ConfigError(f"{where}.filter: the task {task.task} has no filter {task.filter!r}; it has {', '.join(sorted(known))}")
    found = []
    for row in sorted(rows, key=lambda one: (one.task, one.document)):
        if row.filter != (task.filter or filters[row.task]):
            continue
        metric = task.metric or next(iter(row.scores), "")
        if metric not in row.scores:
            raise ConfigError(f"{where}.metric: the task {row.task} has no metric {metric!r}; it has {', '.join(sorted(row.scores))}")
        found.append((row, metric))
    return found


def _label(row: LmEvalRow, metric: str, where: str) -> Label:
    score = row.scores[metric]
    if score is None or not 0.0 <= score <= 1.0:
        known = ", ".join(sorted(key for key, value in row.scores.items() if value is not None and 0.0 <= value <= 1.0))
        raise ConfigError(
            f"{where}.metric: {metric} of the task {row.task} is no number from 0 to 1 for each document; "
            f"{f'set metric to one of {known}' if known else 'choose another task'}"
        )
    return Label(score if row.answer is not None else None, None, {}, 0)


def _result(python: str, order: dict[str, Any], seconds: float, alive: Callable[[], None]) -> dict[str, Any]:
    """Run the driver, and return what it wrote. Calls `alive` from time to time. Nothing of the process is left at the end."""
    with tempfile.TemporaryDirectory(prefix="ratchet-lm-eval-", ignore_cleanup_errors=True) as place:
        out, log = Path(place) / "run.json", Path(place) / "log"
        environment = {key: os.environ[key] for key in _KEPT if key in os.environ} | OFFLINE | {"TOKENIZERS_PARALLELISM": "false"}
        with log.open("wb") as text:
            process = subprocess.Popen(
                [python, "-I", str(DRIVER)],
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
            found: dict[str, Any] = json.loads(out.read_bytes())
        except FileNotFoundError:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            return {"kind": "failed", "text": f"the process ended with status {process.returncode}: {' '.join(last)[-300:]}"}
        return found


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
