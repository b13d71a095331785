"""Jobs on a real NeMo RL release whose GPU work is done on the CPU (`stand_ins`), as the executor of one machine starts them."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Attempt, Checkpoint, JobEvent, JobSpec, JobStatus, Method, ResumePoint, TrainingPlan
from ratchet.contracts.loop import RewardSettings
from ratchet.contracts.schema import parse
from ratchet.local.executor import LocalExecutor
from ratchet.runtime.telemetry import NO_TELEMETRY
from ratchet.trainers.backends.nemo.backend import NemoGRPO
from tests.command import ROOT
from tests.needs import Need, lacks
from tests.unit.trainers.conftest import CONTENT, Workshop, store
from tests.waiting import has_result, job_until

PYTHON = Path(os.environ.get("RATCHET_NEMO_PYTHON", ROOT / ".venv-nemo" / "bin" / "python"))
"""The Python of the environment in requirements/nemo_cpu.lock."""
STAND_INS = Path(__file__).with_name("stand_ins")
AUTOMODEL = Path("3rdparty/Automodel-workspace/Automodel")
"""Folder of NeMo Automodel within the source folder of a release."""
SECONDS = 480.0
"""Limit for one job. It is for failures only."""
YES = (RewardSettings(name="regex", options={"pattern": r"\byes\b"}),)
"""Reward 1 for an answer that contains "yes". About a sixth of the answers of an untrained model do."""


def release_root() -> Path:
    """Return the source folder of the release. Skips the test without it, without its NeMo Automodel, or without the environment."""
    named = os.environ.get("RATCHET_NEMO_RL", "").partition(":")[0]
    if not named or not PYTHON.exists():
        lacks(Need.NEMO_RL, "set RATCHET_NEMO_RL to the source folder of a release, and call `make nemo`")
    root = Path(named).resolve()
    if not (root / AUTOMODEL / "nemo_automodel").is_dir():
        lacks(Need.NEMO_RL, f"{root / AUTOMODEL} is empty; call `git submodule update --init {AUTOMODEL}` in the release")
    return root


@contextmanager
def ray_folder() -> Iterator[Path]:
    """Yield a folder for the files of Ray. Its path is short, because Ray's sockets are in it."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Run:
    """One job, and what it has told."""

    bench: Bench
    spec: JobSpec

    @property
    def events(self) -> list[JobEvent]:
        """Return all events of all incarnations."""
        return self.bench.executor.events(self.spec.name)

    def figures(self, incarnation: int | None = None) -> dict[int, dict[str, float]]:
        """Return step -> figures of the progress events, of one incarnation or of all."""
        told = [event for event in self.events if event.kind == "progress" and incarnation in (None, event.incarnation)]
        return {event.step: dict(event.data) for event in told}

    def of_kind(self, kind: str, incarnation: int | None = None) -> list[JobEvent]:
        """Return the events of a kind."""
        return [event for event in self.events if event.kind == kind and incarnation in (None, event.incarnation)]

    def reasons(self) -> list[str]:
        """Return the reasons of all warnings."""
        return [str(event.data.get("reason", "")) for event in self.of_kind("warning")]

    def work(self, incarnation: int = 1) -> Path:
        """Return the work folder of an incarnation."""
        return self.bench.run_folder(self.spec) / f"i{incarnation}" / "work"

    def model(self, incarnation: int = 1) -> Path:
        """Return a copy of the published model's folder."""
        return self.bench.published(self.spec, incarnation)

    def engine_weights(self) -> Path:
        """Return the file with the weights that generation sampled from last."""
        return Path(self.spec.environment["NEMO_STAND_INS_WEIGHTS"])

    def log(self) -> str:
        """Return the ends of the logs, for the message of a failed assertion."""
        return self.bench.log(self.spec)

    def submit(self, incarnation: int = 1) -> None:
        """Start an incarnation."""
        self.bench.executor.submit(self.spec, incarnation)

    def wait(self, step: int | None = None, seconds: float = SECONDS) -> JobStatus:
        """Wait until the job has reached a step, or else until its result is stored."""

        def holds(status: JobStatus) -> bool:
            return has_result(status) or (step is not None and status.step >= step)

        return job_until(self.bench.executor, self.spec.name, holds, seconds, self.log)

    def done(self) -> Run:
        """Submit the job, wait until it is done, and return it."""
        self.submit()
        status = self.wait()
        assert status.outcome == Outcome.DONE, (status, self.log())
        return self

    def failed(self) -> JobStatus:
        """Submit the job, wait for its end, and return the status. It must not be done."""
        self.submit()
        status = self.wait()
        assert status.outcome not in (None, Outcome.DONE), (status, self.log())
        return status

    def preempt(self, step: int) -> ResumePoint:
        """Stop the job once it has reached a step, and pin its newest checkpoint for the next incarnation."""
        self.wait(step)
        self.bench.executor.cancel(self.spec.name)
        status = self.wait()
        assert status.outcome == Outcome.PREEMPTED, (status, self.log())
        event = self.of_kind("checkpoint")[-1]
        resume = ResumePoint(attempt=self.spec.attempt, incarnation=event.incarnation, step=event.step, **event.data)
        self.bench.executor.pin(self.spec, resume)
        return resume

    def disturbed(self, steps: Sequence[int]) -> list[int]:
        """Preempt the run when it reaches each of the steps, let it end, and return the steps from which it resumed."""
        resumed = []
        for incarnation, step in enumerate(steps, 1):
            self.submit(incarnation)
            resumed.append(self.preempt(step).step)
        self.submit(len(steps) + 1)
        status = self.wait()
        assert status.outcome == Outcome.DONE, (status, self.log())
        assert not any("KL reference" in reason for reason in self.reasons())
        return resumed


class Bench(Workshop):
    """Artifacts, an executor whose jobs run in the environment of the release, and plans for one tiny model."""

    def __init__(self, folder: Path, model: Path, root: Path, ray: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, model)
        self.executor = LocalExecutor(folder / "jobs", folder / "artifacts", python=str(PYTHON))
        self.root, self.ray = root, ray
        prompts = [json.dumps([{"role": "user", "content": f"{a} {b}"}]) for a in CONTENT[6:10] for b in CONTENT[:4]]
        rows = {"prompt": prompts, "reference": ["yes"] * len(prompts)}
        self.development = store(self.artifacts, folder / "development.parquet", rows)
        self._jobs = 0

    def job(
        self, *, gpus: int = 1, nodes: int = 1, timeout: float = 3000.0, rewards: Sequence[RewardSettings] = YES,
        develop: bool = True, environment: Mapping[str, str] | None = None, **changes: Any,
    ) -> Run:  # fmt: skip
        """Return a job that is not started. `changes` are settings of the recipe, `environment` are further variables of the job.

        `develop`: the plan has development prompts, on which the run is validated at each checkpoint.
        """
        small = {"steps": 6, "save_every": 2, "prompts_per_step": 4, "generations": 4, "micro_batch": 4, "max_completion": 4}
        nemo = {"max_prompt": 32, "packing": False, **({} if develop else {"validate_every": 0}), **changes.pop("nemo", {})}
        overrides = nemo.pop("overrides", {})
        plan = self.plan(Method.GRPO, rewards, **{**small, "precision": "float32", "learning_rate": 0.01, **changes, "nemo": nemo})
        if overrides:  # the plan comes from the trainer on TRL, which refuses them
            plan = plan.model_copy(
                update={"recipe": NemoGRPO().recipe({**plan.recipe, "nemo": {**plan.recipe["nemo"], "overrides": overrides}})}
            )
        if develop:
            plan = plan.model_copy(update={"development": self.development})
        return self.run(NemoGRPO(), plan, Attempt(number=1, timeout=timeout, gpus=gpus, nodes=nodes), environment)

    def run(self, trainer: Any, plan: TrainingPlan, attempt: Attempt, environment: Mapping[str, str] | None = None) -> Run:
        """Return a job of a trainer that is not started. Its attempt gets the next number of the bench."""
        self._jobs += 1  # a further job of the same plan is another attempt
        spec = trainer.job(plan, attempt.model_copy(update={"number": self._jobs}))
        return Run(
            self, spec.model_copy(update={"environment": {**spec.environment, **self._environment(attempt.gpus), **(environment or {})}})
        )

    def published(self, spec: JobSpec, incarnation: int) -> Path:
        """Return a copy of the folder of the model that an incarnation of a job published."""
        bound = self.artifacts.resolve(f"checkpoint/{spec.plan}/a{spec.attempt}/i{incarnation}")
        assert bound, "the run published no model"
        folder = self.folder / "published" / f"{spec.plan[:16]}-a{spec.attempt}-i{incarnation}"
        if not folder.exists():
            self.artifacts.fetch(parse(Checkpoint, self.artifacts.get(bound)).files, folder)
        return folder

    def _environment(self, gpus: int) -> dict[str, str]:
        paths = [STAND_INS, ROOT, self.root, self.root / AUTOMODEL, *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **NO_TELEMETRY,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "RATCHET_NEMO_RL": str(self.root),
            "NEMO_STAND_INS": "1",
            "NEMO_STAND_INS_GPUS": str(gpus),
            "NEMO_STAND_INS_WEIGHTS": str(self.folder / f"weights{self._jobs}.pt"),
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus))),
            "HF_HOME": str(self.folder / "hf"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "RAY_TMPDIR": str(self.ray),
            "RAY_memory_monitor_refresh_ms": "0",  # other processes of the machine are not the run's
            "RAY_USAGE_STATS_ENABLED": "0",
            "TOKENIZERS_PARALLELISM": "false",
        }
